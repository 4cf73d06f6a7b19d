package wire_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/wire"
)

// TestLastUpdateOfOthersCountsAsAbsent is about positions that mean nothing here.
func TestLastUpdateOfOthersCountsAsAbsent(t *testing.T) {
	t.Parallel()
	current := wire.LastUpdate{Cell: "two", Incarnation: "i7", Position: 12}
	require.Equal(t, "two/i7/12", current.String())
	for text, want := range map[string]uint64{
		"two/i7/12": 12,
		"two/i7/3":  3,
		"two/i7/0":  0,
		// A higher position than the current one was lost in a failover.
		"two/i7/13":                          0,
		"one/i7/12":                          0,
		"two/i6/12":                          0,
		"":                                   0,
		"t0":                                 0,
		"two/i7/":                            0,
		"two/i7/-1":                          0,
		"two/i7/+1":                          0,
		"two/i7/012":                         0,
		"two/i7/12/":                         0,
		"two/i7/99999999999999999999":        0,
		"two/i7/" + strings.Repeat("0", 300): 0,
	} {
		require.Equal(t, want, current.Since(text), text)
	}
}

func FuzzParseLastUpdate(f *testing.F) {
	f.Add("two/i7/12")
	f.Add("two/i7/+12")
	f.Fuzz(func(t *testing.T, text string) {
		if u, ok := wire.ParseLastUpdate(text); ok {
			require.Equal(t, text, u.String())
			u.Position = math.MaxUint64
			require.NotPanics(t, func() { u.Since(text) })
		}
	})
}
