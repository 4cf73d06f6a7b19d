package targets_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent/targets"
)

func parse(t *testing.T, line string) targets.Configuration {
	t.Helper()
	c, err := targets.Parse([]byte(line))
	require.NoError(t, err)
	return c
}

func newBook(t *testing.T, patterns ...string) *targets.Book {
	t.Helper()
	allowed, err := targets.ParseAllowed(patterns)
	require.NoError(t, err)
	return targets.NewBook(allowed)
}

func where(t *testing.T, b *targets.Book, name string) string {
	t.Helper()
	address, err := b.Find(name)
	if err != nil {
		return err.Error()
	}
	return address.String()
}

func TestATargetIsThereWhenBothSidesAgree(t *testing.T) {
	t.Parallel()
	b := newBook(t, "*.svc:*")
	require.Equal(t, "the agent has not been told its targets yet", where(t, b, "shop"))
	require.Equal(t, targets.Summary{}, b.Summary())
	require.True(t, b.Reporter().Report(parse(t, `{"config_revision":3,"relay_targets":[{"name":"shop","address":"shop.apps.svc:80"},{"name":"metadata","address":"169.254.169.254:80"}]}`)))
	require.Equal(t, "shop.apps.svc:80", where(t, b, "shop"))
	require.Equal(t, `the agent's configuration (revision 3) has no target "db"`, where(t, b, "db"))
	require.Equal(t, `target "metadata" is at 169.254.169.254:80, which targets.allowed_addresses of the agent in its cluster does not allow`, where(t, b, "metadata"))
	require.Equal(t, targets.Summary{Known: true, Revision: 3, Targets: 2, Forbidden: []string{"metadata"}}, b.Summary())
}

func TestTheHighestRevisionOfTheRelaysThatAreThereCounts(t *testing.T) {
	t.Parallel()
	b := newBook(t, "*:*")
	revision := func(number string) targets.Configuration {
		return parse(t, `{"config_revision":`+number+`,"relay_targets":[{"name":"shop","address":"shop:`+number+`"}]}`)
	}
	one, two, three := b.Reporter(), b.Reporter(), b.Reporter()
	one.Leave() // before it has reported
	require.True(t, one.Report(revision("7")))
	require.False(t, two.Report(revision("6")), "a relay that is behind")
	require.Equal(t, "shop:7", where(t, b, "shop"))
	require.True(t, two.Report(revision("8")))
	require.Equal(t, "shop:8", where(t, b, "shop"))
	two.Leave()
	require.Equal(t, "shop:7", where(t, b, "shop"), "who is there knows")
	one.Leave()
	require.Equal(t, "shop:7", where(t, b, "shop"), "nobody is there: the last one is kept")
	require.True(t, three.Report(revision("2")), "the control plane was restored from an older copy")
	require.Equal(t, "shop:2", where(t, b, "shop"))
	require.True(t, three.Report(parse(t, `{"config_revision":2}`)), "and the same number means something else now")
	require.Contains(t, where(t, b, "shop"), "no target")
}

func TestWhatCannotBeATargetIsLeftOut(t *testing.T) {
	t.Parallel()
	c := parse(t, `{"config_revision":1,"more":true,"relay_targets":[{"name":"kubernetes","address":"a:1"},{"name":"A","address":"a:1"},{"name":"db","address":"db"},{"name":"shop","address":"a:1"},{"name":"shop","address":"b:1"}]}`)
	require.Equal(t, map[string]targets.Address{"shop": {Host: "a", Port: 1}}, c.Addresses)
	require.EqualError(t, errors.Join(c.Faults...), "\"kubernetes\" is no name of a target\n\"A\" is no name of a target\ntarget db: \"db\" is not host:port\ntarget shop is there twice")
	for _, line := range []string{``, `[]`, `{"config_revision":-1}`, `{"config_revision":"1"}`, `{`} {
		_, err := targets.Parse([]byte(line))
		require.Error(t, err, line)
	}
}

func FuzzConfiguration(f *testing.F) {
	f.Add([]byte(`{"config_revision":3,"relay_targets":[{"name":"shop","address":"shop.apps.svc:80"}]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		c, err := targets.Parse(line)
		if err != nil {
			return
		}
		b := newBook(t)
		b.Reporter().Report(c)
		for name := range c.Addresses {
			_, err := b.Find(name)
			require.Error(t, err, "nothing is allowed")
		}
	})
}
