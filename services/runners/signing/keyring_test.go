package signing_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/signingkey"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/signing"
)

// fakeStore returns set keys or a set error.
type fakeStore struct {
	mu    sync.Mutex
	keys  []signingkey.Key
	err   error
	calls int
	// rotated receives after each call.
	rotated chan struct{}
}

func (s *fakeStore) Rotate(context.Context) ([]signingkey.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	select {
	case s.rotated <- struct{}{}:
	default:
	}
	return s.keys, s.err
}

func (s *fakeStore) set(err error, keys ...signingkey.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, s.err = keys, err
}

var errAway = errors.New("the database is away")

func newKey(t *testing.T, made time.Time) signingkey.Key {
	t.Helper()
	k, err := signing.Schedule.New(made)
	require.NoError(t, err)
	return k
}

func newKeyring(now time.Time, keys ...signingkey.Key) (*signing.Keyring, *fakeStore) {
	store := &fakeStore{keys: keys, rotated: make(chan struct{}, 1)}
	return &signing.Keyring{
		Store: store, Cell: "one", Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return now },
		Interval: time.Millisecond,
	}, store
}

var claimed = job.Job{ID: 7, ProjectID: 4, OrganizationID: 1, Claims: 2, RunTimeout: time.Hour}

func TestTokenNamesItsClaimAndIsVerified(t *testing.T) {
	t.Parallel()
	ring, _ := newKeyring(start.Add(time.Hour), newKey(t, start))
	require.NoError(t, ring.Refresh(t.Context()))
	verifier := jobtoken.NewVerifier(ring.Find, ring.Now)
	token, err := ring.Issue(claimed, []int64{5, 6})
	require.NoError(t, err)
	require.Equal(t, signing.Hash(token.Value), token.Hash)
	claims, err := verifier.Verify(token.Value)
	require.NoError(t, err)
	require.EqualValues(t, 7, claims.JobID)
	require.Equal(t, 2, claims.Attempt)
	require.True(t, claims.PermitsArtifacts(6))
	require.False(t, claims.PermitsArtifacts(7))
	require.False(t, claims.Permits(jobtoken.ScopeRegistryPush))
	require.Equal(t, start.Add(2*time.Hour+5*time.Minute), claims.ExpiresAt.UTC())
	require.Equal(t, claims.ExpiresAt.UTC(), token.ExpiresAt)

	ring.Registry = true
	again, err := ring.Issue(claimed, nil)
	require.NoError(t, err)
	require.NotEqual(t, token.Hash, again.Hash)
	claims, err = verifier.Verify(again.Value)
	require.NoError(t, err)
	require.True(t, claims.Permits(jobtoken.ScopeRegistryPush))
	require.False(t, claims.Permits(jobtoken.ScopeDownload))

	long := claimed
	long.RunTimeout = 1000 * 24 * time.Hour
	token, err = ring.Issue(long, nil)
	require.NoError(t, err)
	require.Equal(t, start.Add(time.Hour+signing.MaxTokenLifetime), token.ExpiresAt, "no token outlives its key")
}

func TestKeyringWorksWithKnownKeysWithoutDatabase(t *testing.T) {
	t.Parallel()
	first := newKey(t, start)
	ring, store := newKeyring(start)
	store.set(errAway)
	_, err := ring.Issue(claimed, nil)
	require.True(t, fault.Is(err, errcode.Unavailable), "%v", err)
	require.ErrorIs(t, ring.Run(t.Context(), func() { require.Fail(t, "ready without a key") }), errAway)

	store.set(nil, first)
	changed := ring.Changed()
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- ring.Run(ctx, sync.OnceFunc(func() { close(ready) })) }()
	<-ready
	<-changed
	store.set(errAway)
	for range 3 {
		<-store.rotated
	}
	_, err = ring.Issue(claimed, nil)
	require.NoError(t, err)
	select {
	case <-ring.Changed():
		require.Fail(t, "the keys are the same")
	default:
	}
	stop()
	require.NoError(t, <-ended)
}

func TestUnknownKeysCostAtMostOneQueryInASecond(t *testing.T) {
	t.Parallel()
	now := start
	ring, store := newKeyring(start, newKey(t, start))
	ring.Now = func() time.Time { return now }
	for range 100 {
		require.NoError(t, ring.Refresh(t.Context()))
	}
	require.Equal(t, 1, store.calls)
	now = now.Add(time.Second)
	store.set(errAway)
	require.True(t, fault.Is(ring.Refresh(t.Context()), errcode.Unavailable))
	require.Equal(t, 2, store.calls)
}

func TestPublicKeysArePublished(t *testing.T) {
	t.Parallel()
	old, recent := newKey(t, start), newKey(t, start.Add(time.Hour))
	ring, _ := newKeyring(start.Add(2*time.Hour), old, recent)
	require.NoError(t, ring.Refresh(t.Context()))
	answer := httptest.NewRecorder()
	ring.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, signing.KeySetPath, nil))
	require.Equal(t, "application/jwk-set+json", answer.Header().Get("Content-Type"))
	var published jobtoken.KeySet
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &published))
	require.Equal(t, jobtoken.KeySet{{ID: recent.ID, Public: recent.Public}, {ID: old.ID, Public: old.Public}}, published)
	require.NotContains(t, answer.Body.String(), "\"d\"")

	entry := ring.Entry(signing.Addresses{URL: "http://one.example", RedirectURL: "https://ci.example"})
	require.NoError(t, entry.Validate())
	require.Equal(t, cellmap.Cell{
		Name: "one", URL: "http://one.example", RedirectURL: "https://ci.example", State: cellmap.Active, Keys: published,
	}, entry)
	_, found := ring.Find("two", old.ID)
	require.False(t, found, "another cell")
}

func TestKeySetStaysWithinItsLimit(t *testing.T) {
	t.Parallel()
	var keys []signingkey.Key
	for i := range jobtoken.MaxKeys + 4 {
		keys = append(keys, newKey(t, start.Add(time.Duration(i)*time.Hour)))
	}
	ring, _ := newKeyring(start.Add(100*time.Hour), keys...)
	require.NoError(t, ring.Refresh(t.Context()))
	require.NoError(t, ring.Keys().Validate())
	id, _ := ring.Current()
	_, found := ring.Keys().Find(id)
	require.True(t, found)
}

func TestKeyFile(t *testing.T) {
	t.Parallel()
	key, err := seal.GenerateKey()
	require.NoError(t, err)
	seed, err := key.Seed()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(file, []byte(seed.Reveal()+"\n"), 0o600))
	opened, err := signing.Config{KeyFile: config.SecretFile(file)}.Open()
	require.NoError(t, err)
	require.Equal(t, key.Public(), opened.Public())
	require.NoError(t, os.WriteFile(file, []byte("wrong"), 0o600))
	_, err = signing.Config{KeyFile: config.SecretFile(file)}.Open()
	require.ErrorContains(t, err, "signing.key_file")
	_, err = signing.Config{KeyFile: config.SecretFile(file + "x")}.Open()
	require.ErrorContains(t, err, "signing.key_file")
}
