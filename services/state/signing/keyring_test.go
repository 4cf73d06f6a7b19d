package signing_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/signingkey"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/signing"
)

var start = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func key(id string, made time.Time) signingkey.Key {
	return signingkey.Key{
		ID: id, Private: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), MadeAt: made,
		NotAfter: made.Add(signing.Schedule.Lifetime),
	}
}

// fakeStore returns set keys or a set error.
type fakeStore struct {
	mu      sync.Mutex
	keys    []signingkey.Key
	err     error
	rotated chan struct{}
}

func (s *fakeStore) Rotate(context.Context) ([]signingkey.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.rotated <- struct{}{}:
	default:
	}
	return s.keys, s.err
}

func (s *fakeStore) set(keys []signingkey.Key, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, s.err = keys, err
}

func TestKeyringSignsWithKnownKeysWithoutDatabase(t *testing.T) {
	t.Parallel()
	store := &fakeStore{err: errors.New("the database is away"), rotated: make(chan struct{}, 1)}
	ring := &signing.Keyring{
		Store:    store,
		Cell:     "local",
		Logger:   slog.New(slog.DiscardHandler),
		Now:      func() time.Time { return start },
		Interval: time.Millisecond,
	}
	_, _, err := ring.Issue(directory.User{ID: 5}, directory.Token{}, []string{"deploys"})
	require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
	require.ErrorContains(
		t,
		ring.Run(t.Context(), func() { require.Fail(t, "ready without a key") }),
		"the database is away",
	)

	store.set([]signingkey.Key{key("a", start)}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}, 1000), make(chan error, 1)
	go func() {
		ended <- ring.Run(ctx, func() {
			select {
			case ready <- struct{}{}:
			default:
			}
		})
	}()
	<-ready
	store.set(nil, errors.New("the database is away"))
	for range 3 {
		<-store.rotated
	}
	token, expires, err := ring.Issue(directory.User{ID: 5}, directory.Token{}, []string{"deploys"})
	require.NoError(t, err)
	require.NotEmpty(t, token)
	require.Equal(t, start.Add(access.TokenLifetime), expires)
	cancel()
	require.NoError(t, <-ended)

	personal := directory.Token{ExpiresAt: start.Add(time.Minute)}
	_, expires, err = ring.Issue(directory.User{ID: 5}, personal, []string{"deploys"})
	require.NoError(t, err)
	require.Equal(t, start.Add(time.Minute), expires, "no longer than the personal access token")
	_, _, err = ring.Issue(directory.User{ID: 5}, directory.Token{ExpiresAt: start}, []string{"deploys"})
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
}
