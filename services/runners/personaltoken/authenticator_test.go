package personaltoken_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/personaltoken"
)

var now = time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC)

// fixture is an authenticator whose state service and directory a test controls. The access token that the service
// returns is the personal one, which names the user of the fixture.
type fixture struct {
	t             *testing.T
	authenticator *personaltoken.Authenticator
	exchanges     atomic.Int32

	mu    sync.Mutex
	now   time.Time
	valid map[string]access.Caller
	users map[int64]directory.User
	err   error
	// gate, if set, keeps exchanges open until it is closed.
	gate chan struct{}
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		t: t, now: now, valid: map[string]access.Caller{}, users: map[int64]directory.User{5: {ID: 5, Admin: true}},
	}
	f.authenticator = personaltoken.New(personaltoken.Config{Exchanger: f, Verifier: f, Users: f, Now: func() time.Time {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.now
	}})
	return f
}

func (f *fixture) change(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fixture) Exchange(ctx context.Context, personal string) (string, error) {
	f.exchanges.Add(1)
	f.mu.Lock()
	gate, err := f.gate, f.err
	f.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return personal, err
}

func (f *fixture) Verify(token string) (access.Caller, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	caller, found := f.valid[token]
	if !found {
		return access.Caller{}, fault.New(errcode.Unauthenticated, "unknown")
	}
	caller.ExpiresAt = f.now.Add(access.TokenLifetime)
	return caller, nil
}

func (f *fixture) User(id int64) (directory.User, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	user, found := f.users[id]
	return user, found
}

// token returns a token of user 5.
func (f *fixture) token() string {
	f.t.Helper()
	token, err := natsauth.NewPersonalToken("local", 5)
	require.NoError(f.t, err)
	f.change(func() { f.valid[token] = access.Caller{UserID: 5, Admin: true, Scope: access.ScopeWrite, TokenID: 11} })
	return token
}

func (f *fixture) refused(code fault.Code, token string) {
	f.t.Helper()
	_, err := f.authenticator.Caller(f.t.Context(), token)
	require.Equal(f.t, code, fault.CodeOf(err), "%v", err)
}

func (f *fixture) accepted(token string) access.Caller {
	f.t.Helper()
	caller, err := f.authenticator.Caller(f.t.Context(), token)
	require.NoError(f.t, err)
	return caller
}

func TestTokenIsExchangedOnceUntilTheAccessTokenExpires(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.token()
	for range 3 {
		caller := f.accepted(token)
		require.Equal(t, int64(5), caller.UserID)
		require.Equal(t, access.ScopeWrite, caller.Scope)
	}
	require.EqualValues(t, 1, f.exchanges.Load())
	f.change(func() { f.now = now.Add(access.TokenLifetime) })
	f.accepted(token)
	require.EqualValues(t, 2, f.exchanges.Load())
}

func TestMalformedTokenIsNotExchanged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.token()
	for _, text := range []string{"", "lsp_x", token + "a", "glrt-x", natsauth.NewToken(natsauth.TokenAgent)} {
		f.refused(errcode.Unauthenticated, text)
	}
	require.Zero(t, f.exchanges.Load())
	older := natsauth.NewToken(natsauth.TokenPersonal)
	f.change(func() { f.valid[older] = access.Caller{UserID: 5} })
	f.accepted(older)
}

func TestRevocationAndBlockCountAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.token()
	require.True(t, f.accepted(token).Admin)
	f.change(func() { f.users[5] = directory.User{ID: 5} })
	require.False(t, f.accepted(token).Admin)
	f.change(func() { f.users[5] = directory.User{ID: 5, RevokedTokens: []int64{11}} })
	f.refused(errcode.Unauthenticated, token)
	f.change(func() { f.users[5] = directory.User{ID: 5, Blocked: true} })
	f.refused(errcode.PermissionDenied, token)
	f.change(func() { delete(f.users, 5) })
	f.refused(errcode.Unauthenticated, token)
}

func TestOutageOfTheStateServiceKeepsWhatIsKnown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token, other := f.token(), f.token()
	f.accepted(token)
	f.change(func() { f.err = fault.New(errcode.Unavailable, "down") })
	f.accepted(token)
	f.refused(errcode.Unavailable, other)
	f.change(func() { f.now = now.Add(time.Hour) })
	f.refused(errcode.Unavailable, token)
	f.change(func() { f.err = nil })
	f.accepted(token)
}

func TestConcurrentRequestsShareAnExchange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.token()
	gate := make(chan struct{})
	f.change(func() { f.gate = gate })
	// The first one ends before the exchange, which goes on for the others.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.authenticator.Caller(ctx, token)
	require.ErrorIs(t, err, context.Canceled)
	results := make(chan error, 8)
	for range cap(results) {
		go func() {
			_, err := f.authenticator.Caller(context.Background(), token)
			results <- err
		}()
	}
	close(gate)
	for range cap(results) {
		require.NoError(t, <-results)
	}
	require.LessOrEqual(t, f.exchanges.Load(), int32(1))
}

func TestFloodOfUnknownTokensDelaysNoKnownOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	known := f.token()
	f.accepted(known)
	f.change(func() { f.now = now.Add(time.Hour) }) // it has to be exchanged again
	gate := make(chan struct{})
	f.change(func() { f.gate = gate })
	errs := make(chan error, 200)
	for range cap(errs) {
		token, err := natsauth.NewPersonalToken("local", 5)
		require.NoError(t, err)
		go func() {
			_, err := f.authenticator.Caller(context.Background(), token)
			errs <- err
		}()
	}
	for range cap(errs) - 68 { // 4 exchanges, and 64 that wait
		require.Equal(t, errcode.ResourceExhausted, fault.CodeOf(<-errs))
	}
	f.change(func() { f.gate = nil })
	f.accepted(known)
	close(gate)
	for range 68 {
		require.Equal(t, errcode.Unauthenticated, fault.CodeOf(<-errs))
	}
}

func TestExchangeThatIsRefusedIsForgotten(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.token()
	f.accepted(token)
	f.change(func() { f.now, f.err = now.Add(time.Hour), errors.New("something") })
	f.refused(errcode.Internal, token)
	f.change(func() { f.err = fault.New(errcode.Unauthenticated, "revoked") })
	f.refused(errcode.Unauthenticated, token)
	f.change(func() { f.err = nil; delete(f.valid, token) })
	f.refused(errcode.Unauthenticated, token)
}
