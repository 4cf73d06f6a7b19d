package filter_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/watcher/filter"
)

func selection(t *testing.T, selector string, namespaces ...string) filter.Selection {
	t.Helper()
	s, err := filter.NewSelection(namespaces, selector)
	require.NoError(t, err)
	return s
}

func TestSelectionByLabels(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		selector string
		labels   map[string]string
		selected bool
	}{
		"everything": {selected: true},
		"a match": {
			selector: "team=shop,tier!=test", labels: map[string]string{"team": "shop"}, selected: true,
		},
		"no match": {
			selector: "team=shop,tier!=test", labels: map[string]string{"team": "shop", "tier": "test"},
		},
		"one of a set":   {selector: "team in (shop,pay)", labels: map[string]string{"team": "pay"}, selected: true},
		"a workspace":    {labels: map[string]string{"lockstep.dev/agent": "1"}},
		"an empty agent": {labels: map[string]string{"lockstep.dev/agent": ""}},
		"a match, but a workspace": {
			selector: "team=shop", labels: map[string]string{"team": "shop", "lockstep.dev/agent": "7"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.selected, selection(t, tc.selector).Selects(tc.labels))
		})
	}
	_, err := filter.NewSelection(nil, "a=b=c")
	require.ErrorContains(t, err, "selector")
}

func TestDigestDependsOnSettings(t *testing.T) {
	t.Parallel()
	base := selection(t, "a=b,c=d", "x", "y").Digest()
	require.Regexp(t, `^[0-9a-f]{16}$`, base)
	require.Equal(t, base, selection(t, "c=d,  a=b", "y", "x", "y").Digest(), "another order")
	for _, other := range []filter.Selection{
		selection(t, "a=b,c=d"), selection(t, "a=b", "x", "y"), selection(t, "a=b,c=d", "x"), selection(t, ""),
	} {
		require.NotEqual(t, base, other.Digest())
	}
}
