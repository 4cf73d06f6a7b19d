package signingkey_test

import (
	"crypto/ed25519"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/signingkey"
)

var start = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// schedule is that of access tokens.
var schedule = signingkey.Schedule{
	Interval: 24 * time.Hour, Lead: 10 * time.Minute, Lifetime: 48 * time.Hour, Rest: 10 * time.Minute,
}

func key(id string, made time.Time) signingkey.Key {
	return signingkey.Key{
		ID:       id,
		Private:  ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)),
		MadeAt:   made,
		NotAfter: made.Add(schedule.Lifetime),
	}
}

func TestCurrentKey(t *testing.T) {
	t.Parallel()
	lost := key("lost", start)
	lost.Private = nil
	for name, c := range map[string]struct {
		after time.Duration
		keys  []signingkey.Key
		want  string
	}{
		"none":              {0, nil, ""},
		"the first at once": {0, []signingkey.Key{key("a", start)}, "a"},
		"the old one while one is new": {
			24*time.Hour + 9*time.Minute,
			[]signingkey.Key{key("a", start), key("b", start.Add(24*time.Hour))},
			"a",
		},
		"the new one when it is known": {
			24*time.Hour + 10*time.Minute,
			[]signingkey.Key{key("a", start), key("b", start.Add(24*time.Hour))},
			"b",
		},
		"in whatever order they are": {
			24*time.Hour + 10*time.Minute,
			[]signingkey.Key{key("b", start.Add(24*time.Hour)), key("a", start)},
			"b",
		},
		"a new one where the old is over": {
			48 * time.Hour,
			[]signingkey.Key{key("a", start), key("b", start.Add(48*time.Hour))},
			"b",
		},
		"none that a token would outlive": {48*time.Hour - 9*time.Minute, []signingkey.Key{key("a", start)}, ""},
		"none that cannot be opened":      {0, []signingkey.Key{lost}, ""},
		"a new one where the old is lost": {time.Hour, []signingkey.Key{lost, key("b", start.Add(time.Hour))}, "b"},
		"the first of two that are unheard": {
			time.Minute,
			[]signingkey.Key{key("a", start), key("b", start.Add(time.Minute))},
			"a",
		},
	} {
		got, found := schedule.Current(start.Add(c.after), c.keys)
		require.Equal(t, c.want, got.ID, name)
		require.Equal(t, c.want != "", found, name)
	}
}

func TestRotationPlan(t *testing.T) {
	t.Parallel()
	lost := key("lost", start)
	lost.Private = nil
	for name, c := range map[string]struct {
		after time.Duration
		keys  []signingkey.Key
		make  bool
		over  int
	}{
		"at first":          {0, nil, true, 0},
		"nothing":           {23 * time.Hour, []signingkey.Key{key("a", start)}, false, 0},
		"a day later":       {24 * time.Hour, []signingkey.Key{key("a", start)}, true, 0},
		"one is new":        {25 * time.Hour, []signingkey.Key{key("a", start), key("b", start.Add(24*time.Hour))}, false, 0},
		"one is over":       {48 * time.Hour, []signingkey.Key{key("a", start), key("b", start.Add(25*time.Hour))}, false, 1},
		"one is lost":       {0, []signingkey.Key{lost}, true, 0},
		"after a long time": {1000 * time.Hour, []signingkey.Key{key("a", start), lost}, true, 2},
	} {
		plan := schedule.Plan(start.Add(c.after), c.keys)
		require.Equal(t, c.make, plan.Create, name)
		require.Len(t, plan.Expired, c.over, name)
	}
}

// The keys rotate every minute for a month, with a few outages.
func TestAPublishedKeyAlwaysExists(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(1, 2))
	var keys []signingkey.Key
	valid := 0
	for at, n := time.Duration(0), 0; at < 30*24*time.Hour; at += time.Minute {
		now := start.Add(at)
		if chance.IntN(2000) == 0 {
			at += time.Duration(chance.IntN(20)) * time.Hour // an outage
			now = start.Add(at)
		}
		plan := schedule.Plan(now, keys)
		for _, gone := range plan.Expired {
			keys = slicesWithout(keys, gone.ID)
		}
		if plan.Create {
			n++
			keys = append(keys, key(fmt.Sprint(n), now))
		}
		current, found := schedule.Current(now, keys)
		require.True(t, found, "%s", at)
		require.False(t, current.NotAfter.Before(now.Add(schedule.Rest)), "a token would outlive its key")
		if len(keys) > 1 {
			require.GreaterOrEqual(t, now.Sub(current.MadeAt), 10*time.Minute, "%s: services may not know the key yet", at)
		}
		require.LessOrEqual(t, len(keys), 3)
		valid = max(valid, len(keys))
	}
	require.GreaterOrEqual(t, valid, 2)
}

func slicesWithout(keys []signingkey.Key, id string) []signingkey.Key {
	var left []signingkey.Key
	for _, k := range keys {
		if k.ID != id {
			left = append(left, k)
		}
	}
	return left
}
