package postgres_test

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/signingkey"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/signing"
)

func (f *fixture) signingKeys(key seal.Key, at time.Time) postgres.SigningKeys {
	return postgres.SigningKeys{
		DB: f.pool, Key: key, Schedule: signing.Schedule, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return at },
	}
}

func sealKey(t *testing.T) seal.Key {
	t.Helper()
	key, err := seal.GenerateKey()
	require.NoError(t, err)
	return key
}

func TestReplicasShareOneSigningKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := sealKey(t)
	results := make([][]signingkey.Key, 8)
	var group sync.WaitGroup
	for i := range results {
		group.Go(func() {
			keys, err := f.signingKeys(key, now).Rotate(t.Context())
			if err != nil {
				t.Error(err)
			}
			results[i] = keys
		})
	}
	group.Wait()
	require.Len(t, results[0], 1)
	for _, keys := range results {
		require.Len(t, keys, 1)
		require.Equal(t, results[0][0].Private, keys[0].Private)
		require.True(t, results[0][0].NotAfter.Equal(keys[0].NotAfter))
	}
	require.Zero(t, f.count(`SELECT count(*) FROM signing_keys WHERE position($1 IN private) > 0`,
		results[0][0].Private.Seed()), "the private key is stored in the clear")
}

func TestSigningKeysAreCreatedAndRemovedInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	key := sealKey(t)
	for day := range 100 {
		at := now.AddDate(0, 0, day)
		keys, err := f.signingKeys(key, at).Rotate(t.Context())
		require.NoError(t, err)
		_, found := signing.Schedule.Current(at, keys)
		require.True(t, found)
		require.Equal(t, len(keys), f.count(`SELECT count(*) FROM signing_keys`))
	}
	require.Equal(t, 12, f.count(`SELECT count(*) FROM signing_keys`))
}

func TestReplacedSealKeepsThePublicKeysAndMakesANewKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before, err := f.signingKeys(sealKey(t), now).Rotate(t.Context())
	require.NoError(t, err)
	after, err := f.signingKeys(sealKey(t), now).Rotate(t.Context())
	require.NoError(t, err)
	require.Len(t, after, 2)
	require.Equal(t, before[0].Public, after[0].Public)
	require.Nil(t, after[0].Private)
	current, found := signing.Schedule.Current(now, after)
	require.True(t, found)
	require.Equal(t, after[1].ID, current.ID)
}
