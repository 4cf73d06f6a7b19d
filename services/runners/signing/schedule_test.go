package signing_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/signingkey"
	"lockstep.internal/services/runners/signing"
)

var start = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// TestKeysAreKnownBeforeTheySignAndUntilTheirLastTokenExpires rotates the keys for half a year, with outages.
func TestKeysAreKnownBeforeTheySignAndUntilTheirLastTokenExpires(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(1, 2))
	var keys []signingkey.Key
	removed := map[string]time.Time{}
	lastToken := map[string]time.Time{}
	most := 0
	for now := start; now.Before(start.AddDate(0, 6, 0)); now = now.Add(5 * time.Minute) {
		if chance.IntN(2000) == 0 {
			now = now.Add(time.Duration(chance.IntN(20)) * time.Hour) // an outage
		}
		plan := signing.Schedule.Plan(now, keys)
		for _, expired := range plan.Expired {
			removed[expired.ID] = now
			keys = without(keys, expired.ID)
		}
		if plan.Create {
			created, err := signing.Schedule.New(now)
			require.NoError(t, err)
			keys = append(keys, created)
		}
		current, found := signing.Schedule.Current(now, keys)
		require.True(t, found)
		if len(keys) > 1 {
			require.GreaterOrEqual(t, now.Sub(current.MadeAt), 10*time.Minute, "verifiers may not know the key yet")
		}
		lastToken[current.ID] = now.Add(signing.MaxTokenLifetime)
		most = max(most, len(keys))
	}
	require.LessOrEqual(t, most, jobtoken.MaxKeys)
	require.Greater(t, len(removed), 10)
	for id, at := range removed {
		require.False(t, at.Before(lastToken[id]), "a token was valid longer than its key")
	}
}

func without(keys []signingkey.Key, id string) []signingkey.Key {
	var left []signingkey.Key
	for _, k := range keys {
		if k.ID != id {
			left = append(left, k)
		}
	}
	return left
}
