package artifact_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/artifact"
)

const day = 24 * time.Hour

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.FixedZone("", 3600))

func TestExpiryFollowsTextAndRules(t *testing.T) {
	t.Parallel()
	forever := time.Duration(0)
	for _, test := range []struct {
		text         string
		defaults, at time.Duration
		max          time.Duration
	}{
		{text: "", defaults: 30 * day, at: 30 * day},
		{text: "  ", defaults: 30 * day, at: 30 * day},
		{text: "", defaults: 0, at: forever},
		{text: "", defaults: 0, max: day, at: day},
		{text: "", defaults: 30 * day, max: day, at: day},
		{text: "1 week", defaults: 30 * day, at: 7 * day},
		{text: " 1 week ", at: 7 * day},
		{text: "90", at: 90 * time.Second},
		{text: "1 week", max: 7 * day, at: 7 * day},
		{text: "1 week", max: 7*day - 1, at: 7*day - 1},
		{text: "never", defaults: 30 * day, at: forever},
		{text: "NEVER", defaults: 30 * day, at: forever},
		{text: "never", defaults: 30 * day, max: 90 * day, at: 90 * day},
		{text: "1000 years", max: 90 * day, at: 90 * day},
	} {
		at, expires, err := artifact.ExpiresAt(now, test.text, artifact.Expiry{Default: test.defaults, Max: test.max})
		require.NoError(t, err, "%+v", test)
		require.Equal(t, test.at != forever, expires, "%+v", test)
		if expires {
			require.Equal(t, now.UTC().Add(test.at), at, "%+v", test)
		} else {
			require.Zero(t, at)
		}
	}
}

func TestInvalidExpiryIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"soon", "0", "0 days", "-1 day", "1 fortnight", "1000 years", "nevers", "1.5 h"} {
		_, _, err := artifact.ExpiresAt(now, text, artifact.DefaultExpiry())
		require.Equal(t, errcode.InvalidArgument, fault.From(err).Code, "%q", text)
		require.ErrorContains(t, err, "expire_in: ")
	}
}

func FuzzExpiresAt(f *testing.F) {
	for _, text := range []string{"", "never", "1 week", "10 years", "0", "99999999999999999999 y"} {
		f.Add(text, int64(0), int64(day))
	}
	f.Fuzz(func(t *testing.T, text string, defaults, limit int64) {
		rules := artifact.Expiry{
			Default: max(0, time.Duration(defaults)%(100*day)), Max: max(0, time.Duration(limit)%(100*day)),
		}
		at, expires, err := artifact.ExpiresAt(now, text, rules)
		switch {
		case err != nil:
			return
		case !expires && rules.Max > 0:
			t.Fatalf("%q never expires", text)
		case expires && (!at.After(now) || (rules.Max > 0 && at.After(now.Add(rules.Max)))):
			t.Fatalf("%q expires at %s", text, at)
		}
	})
}
