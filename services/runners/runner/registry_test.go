package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/routable"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/runner"
)

const timeout = time.Minute

var errDown = errors.New("the database is down")

// memory is a store whose failures and delays a test controls. Package postgres tests the real one.
type memory struct {
	mu       sync.Mutex
	runners  map[int64]runner.Runner
	contacts []runner.Contact
	lookUps  int
	down     bool
	// hold, if set, is called in reads of ids after the runners were read.
	hold func()
}

func (m *memory) change(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *memory) Runners(ctx context.Context) ([]runner.Runner, error) {
	m.mu.Lock()
	ids := make([]int64, 0, len(m.runners))
	for id := range m.runners {
		ids = append(ids, id)
	}
	m.mu.Unlock()
	return m.RunnersByID(ctx, ids...)
}

func (m *memory) RunnersByID(_ context.Context, ids ...int64) ([]runner.Runner, error) {
	m.mu.Lock()
	var found []runner.Runner
	for _, id := range ids {
		if r, exists := m.runners[id]; exists {
			found = append(found, r)
		}
	}
	hold, down := m.hold, m.down
	m.mu.Unlock()
	if down {
		return nil, errDown
	}
	if hold != nil {
		hold()
	}
	return found, nil
}

func (m *memory) Elsewhere(context.Context, int64) error { return nil }

func (m *memory) IDByToken(_ context.Context, hash runner.TokenHash) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lookUps++
	if m.down {
		return 0, errDown
	}
	for id, r := range m.runners {
		if r.TokenHash == hash {
			return id, nil
		}
	}
	return 0, nil
}

func (m *memory) StoreContact(_ context.Context, c runner.Contact, _ int) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, exists := m.runners[c.RunnerID]; !exists {
		return 0, fmt.Errorf("runner %d: %w", c.RunnerID, runner.ErrNoRunner)
	}
	if m.down {
		return 0, errDown
	}
	m.contacts = append(m.contacts, c)
	return 1000 + int64(len(c.SystemID)), nil
}

func (m *memory) written() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.contacts)
}

// changes is what a listener reports.
type changes struct {
	mu      sync.Mutex
	changed chan struct{}
	ids     []int64
	all     bool
}

func (c *changes) Changed() <-chan struct{} { return c.changed }

func (c *changes) Take() ([]int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids, all := c.ids, c.all
	c.ids, c.all = nil, false
	return ids, all
}

func (c *changes) report(all bool, ids ...int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids, c.all = append(c.ids, ids...), c.all || all
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

type fixture struct {
	t        *testing.T
	store    *memory
	changes  *changes
	registry *runner.Registry
	now      *atomic.Pointer[time.Time]
	ready    chan struct{}
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		t: t, store: &memory{runners: map[int64]runner.Runner{}}, changes: &changes{changed: make(chan struct{}, 1)},
		now: &atomic.Pointer[time.Time]{}, ready: make(chan struct{}),
	}
	f.advance(0)
	f.registry = runner.NewRegistry(runner.Config{
		Store: f.store, Changes: f.changes, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Now: func() time.Time { return *f.now.Load() }, ContactEvery: func() time.Duration { return 40 * time.Minute },
		MaxManagers: 3, Retry: retry.Policy{Min: time.Millisecond, Max: 10 * time.Millisecond},
	})
	return f
}

// run runs the registry until the test ends.
func (f *fixture) run() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var once sync.Once
	go func() {
		defer close(ended)
		f.registry.Run(ctx, func() { once.Do(func() { close(f.ready) }) })
	}()
	f.t.Cleanup(func() { cancel(); <-ended })
	f.changes.report(true)
	f.await(f.ready)
}

func (f *fixture) await(c <-chan struct{}) {
	f.t.Helper()
	select {
	case <-c:
	case <-time.After(timeout):
		require.FailNow(f.t, "nothing happened")
	}
}

// until waits for a change after which it holds.
func (f *fixture) until(holds func() bool) {
	f.t.Helper()
	for {
		changed := f.registry.Changed()
		if holds() {
			return
		}
		f.await(changed)
	}
}

func (f *fixture) advance(d time.Duration) {
	at := now
	if known := f.now.Load(); known != nil {
		at = known.Add(d)
	}
	f.now.Store(&at)
}

// add stores a runner and returns its token.
func (f *fixture) add(id int64) string {
	f.t.Helper()
	token, hash, err := runner.NewToken(routable.Payload{Cell: "local"})
	require.NoError(f.t, err)
	f.store.change(func() {
		f.store.runners[id] = runner.Runner{ID: id, Type: runner.InstanceType, TokenHash: hash, Revision: 1, CreatedAt: now}
	})
	return token
}

// update stores a change of a runner, as another replica does.
func (f *fixture) update(id int64, change func(*runner.Runner)) {
	f.store.change(func() {
		r := f.store.runners[id]
		change(&r)
		r.Revision++
		f.store.runners[id] = r
	})
}

func (f *fixture) remove(id int64) { f.store.change(func() { delete(f.store.runners, id) }) }

func (f *fixture) denied(token string) {
	f.t.Helper()
	_, err := f.registry.Authenticate(f.t.Context(), token)
	require.Equal(f.t, errcode.PermissionDenied, fault.CodeOf(err), "%v", err)
}

func (f *fixture) accepted(token string) *runner.Runner {
	f.t.Helper()
	r, err := f.registry.Authenticate(f.t.Context(), token)
	require.NoError(f.t, err)
	return r
}

func TestNothingIsDeniedBeforeRunnersAreLoaded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.add(7)
	_, err := f.registry.Authenticate(t.Context(), token)
	require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
	require.Error(t, f.registry.Check(t.Context()))
	f.denied("glrt-nonsense")
	f.run()
	require.NoError(t, f.registry.Check(t.Context()))
	require.Equal(t, int64(7), f.accepted(token).ID)
	require.Zero(t, f.store.lookUps)
}

func TestChangesOfOtherReplicasArrive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.add(7)
	f.run()
	f.update(7, func(r *runner.Runner) { r.Paused = true })
	f.changes.report(false, 7)
	f.until(func() bool { r, _ := f.registry.Runner(7); return r.Paused })
	require.True(t, f.accepted(token).Paused)

	f.add(9)
	f.changes.report(false, 9)
	f.until(func() bool { return len(f.registry.All()) == 2 })
	require.Equal(t, int64(7), f.registry.All()[0].ID)

	f.remove(7)
	f.remove(9)
	f.changes.report(true) // after a reconnect
	f.until(func() bool { return len(f.registry.All()) == 0 })
	f.denied(token)
}

func TestTokenOfAnotherReplicaIsLookedUpOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run()
	token := f.add(7) // without a notification
	require.Equal(t, int64(7), f.accepted(token).ID)
	require.Equal(t, int64(7), f.accepted(token).ID)
	require.Equal(t, 1, f.store.lookUps)
	_, known := f.registry.Runner(7)
	require.True(t, known)

	stranger, _, err := runner.NewToken(routable.Payload{})
	require.NoError(t, err)
	f.denied(stranger)
	f.denied(stranger)
	require.Equal(t, 2, f.store.lookUps, "a token that does not exist is remembered")
	// A restored database may have it.
	hash, err := runner.HashToken(stranger)
	require.NoError(t, err)
	f.store.change(func() { f.store.runners[8] = runner.Runner{ID: 8, TokenHash: hash, Revision: 1} })
	f.changes.report(true)
	f.until(func() bool { _, found := f.registry.Runner(8); return found })
	f.accepted(stranger)
}

func TestRefreshIsEffectiveAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	old := f.add(7)
	f.run()
	changed := f.registry.Changed()
	token := f.add(7) // the token is reset
	f.update(7, func(*runner.Runner) {})
	require.NoError(t, f.registry.Refresh(t.Context(), 7))
	f.await(changed)
	f.denied(old)
	f.accepted(token)
	f.remove(7)
	require.NoError(t, f.registry.Refresh(t.Context(), 7))
	f.denied(token)
}

// TestOlderReadDoesNotRestoreADeletedRunner deletes a runner while another read of it has not ended.
func TestOlderReadDoesNotRestoreADeletedRunner(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.add(7)
	f.run()
	reading, proceed := make(chan struct{}), make(chan struct{})
	f.store.change(func() {
		f.store.hold = func() { close(reading); <-proceed }
	})
	f.changes.report(false, 7)
	f.await(reading)
	f.store.change(func() { f.store.hold = nil })
	f.remove(7)
	refreshed := make(chan error, 1)
	go func() { refreshed <- f.registry.Refresh(context.Background(), 7) }()
	close(proceed)
	require.NoError(t, <-refreshed)
	f.denied(token)
}

func TestRefreshThatFailsIsDoneLater(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.add(7)
	f.run()
	f.remove(7)
	f.store.change(func() { f.store.down = true })
	require.ErrorIs(t, f.registry.Refresh(t.Context(), 7), errDown)
	f.accepted(token)
	f.store.change(func() { f.store.down = false })
	f.until(func() bool { _, found := f.registry.Runner(7); return !found })
	f.denied(token)
}

func TestOutageIsNoReasonToDenyAToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.add(7)
	f.run()
	f.store.change(func() { f.store.down = true })
	f.accepted(token)
	fresh := f.add(8)
	_, err := f.registry.Authenticate(t.Context(), fresh)
	require.ErrorIs(t, err, errDown)
	require.NotEqual(t, errcode.PermissionDenied, fault.CodeOf(err))
	f.store.change(func() { f.store.down = false })
	f.accepted(fresh)
}

func TestExpiredTokenIsDenied(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	token := f.add(7)
	f.update(7, func(r *runner.Runner) { r.TokenExpiresAt = now.Add(time.Hour) })
	f.run()
	f.advance(time.Hour - 1)
	f.accepted(token)
	f.advance(1)
	f.denied(token)
}

// TestFloodOfUnknownTokensIsBounded keeps queries open and counts those that run.
func TestFloodOfUnknownTokensIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	known := f.add(7)
	f.run()
	f.store.mu.Lock() // the database does not answer
	var tokens []string
	for range 200 {
		token, _, err := runner.NewToken(routable.Payload{})
		require.NoError(t, err)
		tokens = append(tokens, token)
	}
	codes := make(chan fault.Code, len(tokens))
	for _, token := range tokens {
		go func() {
			_, err := f.registry.Authenticate(context.Background(), token)
			codes <- fault.CodeOf(err)
		}()
	}
	for range len(tokens) - 68 { // 4 queries, and 64 that wait
		require.Equal(t, errcode.ResourceExhausted, <-codes)
	}
	f.accepted(known)
	f.store.mu.Unlock()
	var denied []fault.Code
	for range 68 {
		denied = append(denied, <-codes)
	}
	require.Equal(t, slices.Repeat([]fault.Code{errcode.PermissionDenied}, 68), denied)
}
