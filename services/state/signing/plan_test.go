package signing_test

import (
	"crypto/ed25519"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/services/state/signing"
)

var start = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func key(id string, made time.Time) signing.Key {
	return signing.Key{
		ID:       id,
		Private:  ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)),
		MadeAt:   made,
		NotAfter: signing.End(made),
	}
}

func TestCurrentKey(t *testing.T) {
	t.Parallel()
	lost := key("lost", start)
	lost.Private = nil
	for name, c := range map[string]struct {
		after time.Duration
		keys  []signing.Key
		want  string
	}{
		"none":              {0, nil, ""},
		"the first at once": {0, []signing.Key{key("a", start)}, "a"},
		"the old one while one is new": {
			24*time.Hour + 9*time.Minute,
			[]signing.Key{key("a", start), key("b", start.Add(24*time.Hour))},
			"a",
		},
		"the new one when it is known": {
			24*time.Hour + 10*time.Minute,
			[]signing.Key{key("a", start), key("b", start.Add(24*time.Hour))},
			"b",
		},
		"in whatever order they are": {
			24*time.Hour + 10*time.Minute,
			[]signing.Key{key("b", start.Add(24*time.Hour)), key("a", start)},
			"b",
		},
		"a new one where the old is over": {
			48 * time.Hour,
			[]signing.Key{key("a", start), key("b", start.Add(48*time.Hour))},
			"b",
		},
		"none that a token would outlive": {48*time.Hour - 9*time.Minute, []signing.Key{key("a", start)}, ""},
		"none that cannot be opened":      {0, []signing.Key{lost}, ""},
		"a new one where the old is lost": {time.Hour, []signing.Key{lost, key("b", start.Add(time.Hour))}, "b"},
		"the first of two that are unheard": {
			time.Minute,
			[]signing.Key{key("a", start), key("b", start.Add(time.Minute))},
			"a",
		},
	} {
		got, found := signing.Current(start.Add(c.after), c.keys)
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
		keys  []signing.Key
		make  bool
		over  int
	}{
		"at first":          {0, nil, true, 0},
		"nothing":           {23 * time.Hour, []signing.Key{key("a", start)}, false, 0},
		"a day later":       {24 * time.Hour, []signing.Key{key("a", start)}, true, 0},
		"one is new":        {25 * time.Hour, []signing.Key{key("a", start), key("b", start.Add(24*time.Hour))}, false, 0},
		"one is over":       {48 * time.Hour, []signing.Key{key("a", start), key("b", start.Add(25*time.Hour))}, false, 1},
		"one is lost":       {0, []signing.Key{lost}, true, 0},
		"after a long time": {1000 * time.Hour, []signing.Key{key("a", start), lost}, true, 2},
	} {
		plan := signing.NewPlan(start.Add(c.after), c.keys)
		require.Equal(t, c.make, plan.Create, name)
		require.Len(t, plan.Expired, c.over, name)
	}
}

// The keys rotate every minute for a month, with a few outages.
func TestAPublishedKeyAlwaysExists(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(1, 2))
	var keys []signing.Key
	valid := 0
	for at, n := time.Duration(0), 0; at < 30*24*time.Hour; at += time.Minute {
		now := start.Add(at)
		if chance.IntN(2000) == 0 {
			at += time.Duration(chance.IntN(20)) * time.Hour // an outage
			now = start.Add(at)
		}
		plan := signing.NewPlan(now, keys)
		for _, gone := range plan.Expired {
			keys = slicesWithout(keys, gone.ID)
		}
		if plan.Create {
			n++
			keys = append(keys, key(fmt.Sprint(n), now))
		}
		current, found := signing.Current(now, keys)
		require.True(t, found, "%s", at)
		require.True(t, now.Add(access.TokenLifetime).Before(current.NotAfter), "a token would outlive its key")
		if len(keys) > 1 {
			require.GreaterOrEqual(t, now.Sub(current.MadeAt), 10*time.Minute, "%s: services may not know the key yet", at)
		}
		require.LessOrEqual(t, len(keys), 3)
		valid = max(valid, len(keys))
	}
	require.GreaterOrEqual(t, valid, 2)
}

func slicesWithout(keys []signing.Key, id string) []signing.Key {
	var left []signing.Key
	for _, k := range keys {
		if k.ID != id {
			left = append(left, k)
		}
	}
	return left
}
