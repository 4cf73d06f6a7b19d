package postgres_test

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/routable"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/runner"
)

// runners is the store of the fixture.
func (f *fixture) runners() postgres.Runners {
	return postgres.Runners{Pool: f.pool, Encoder: f.jobs.Encoder, Now: func() time.Time { return now }}
}

// create stores a runner of the instance and returns it with its token.
func (f *fixture) create(change ...func(*runner.Runner)) (runner.Runner, string) {
	f.t.Helper()
	token, hash, err := runner.NewToken(routable.Payload{Cell: "local"})
	require.NoError(f.t, err)
	r := runner.Runner{
		Type: runner.InstanceType, TokenHash: hash, CreatedAt: now, Settings: runner.Settings{RunUntagged: true},
	}
	for _, c := range change {
		c(&r)
	}
	r, err = f.runners().Create(f.t.Context(), r)
	require.NoError(f.t, err)
	return r, token
}

// replica runs a registry until the test ends.
func (f *fixture) replica() *runner.Registry {
	f.t.Helper()
	listener := postgres.NewRunnerChanges(f.pool)
	subscription := listener.Subscribe()
	registry := runner.NewRegistry(runner.Config{
		Store: f.runners(), Changes: subscription, Logger: slog.New(slog.NewTextHandler(f.t.Output(), nil)),
		Now: func() time.Time { return now },
	})
	ctx, stop := context.WithCancel(context.Background())
	ready, listened := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	var group sync.WaitGroup
	group.Go(func() { registry.Run(ctx, func() { once.Do(func() { close(ready) }) }) })
	group.Go(func() { listened <- listener.Run(ctx, func() {}) })
	f.t.Cleanup(func() {
		stop()
		group.Wait()
		subscription.Close()
		require.NoError(f.t, <-listened)
	})
	select {
	case <-ready:
	case err := <-listened:
		require.FailNow(f.t, "the listener ended", "%v", err)
	case <-time.After(time.Minute):
		require.FailNow(f.t, "the registry does not become ready")
	}
	return registry
}

// until waits for a change of the registry after which it holds.
func (f *fixture) until(registry *runner.Registry, holds func() bool) {
	f.t.Helper()
	for {
		changed := registry.Changed()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
			require.FailNow(f.t, "no notification")
		}
	}
}

func (f *fixture) denied(registry *runner.Registry, token string) {
	f.t.Helper()
	_, err := registry.Authenticate(f.t.Context(), token)
	require.Equal(f.t, errcode.PermissionDenied, fault.CodeOf(err), "%v", err)
}

func TestRunnerIsReadAsItWasStored(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, _ := f.create(func(r *runner.Runner) {
		r.Type, r.OrganizationID, r.ProjectIDs = runner.ProjectType, 1, []int64{9, 4}
		r.Settings = runner.Settings{
			Description: "d", MaintenanceNote: "n", Tags: []string{"linux"}, Locked: true, Protected: true, Paused: true,
			MaximumTimeout: time.Hour, UserIDs: []int64{5}, GroupIDs: []int64{6},
		}
		r.TokenExpiresAt, r.CreatedBy = now.Add(time.Hour), 7
	})
	require.Equal(t, int64(1), r.Revision)
	read, err := f.runners().Read(t.Context(), r.ID)
	require.NoError(t, err)
	require.Equal(t, r, read)
	other, _ := f.create()
	r.GroupID, r.Settings, r.TokenExpiresAt = 0, runner.Settings{RunUntagged: true}, time.Time{}
	r = r.WithProject(12)
	r = r.WithToken(runner.TokenHash{1}, time.Time{})
	r, err = f.runners().Update(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, int64(2), r.Revision)
	all, err := f.runners().Runners(t.Context())
	require.NoError(t, err)
	require.Equal(t, []runner.Runner{r, other}, all)
	id, err := f.runners().IDByToken(t.Context(), runner.TokenHash{1})
	require.NoError(t, err)
	require.Equal(t, r.ID, id)
	id, err = f.runners().IDByToken(t.Context(), runner.TokenHash{2})
	require.NoError(t, err)
	require.Zero(t, id)
}

func TestUpdateOfAnOlderRevisionIsAConflict(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, _ := f.create()
	_, err := f.runners().Update(t.Context(), r)
	require.NoError(t, err)
	_, err = f.runners().Update(t.Context(), r)
	require.Equal(t, errcode.Conflict, fault.CodeOf(err))
	require.NoError(t, f.runners().Delete(t.Context(), r.ID))
	_, err = f.runners().Update(t.Context(), r)
	require.ErrorIs(t, err, runner.ErrNoRunner)
	require.Equal(t, errcode.NotFound, fault.CodeOf(f.runners().Delete(t.Context(), r.ID)))
	_, err = f.runners().Read(t.Context(), r.ID)
	require.Equal(t, errcode.NotFound, fault.CodeOf(err))
}

func TestTwoReplicasKnowTheSameRunners(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, old := f.create()
	one, two := f.replica(), f.replica()
	_, err := two.Authenticate(t.Context(), old)
	require.NoError(t, err)

	// A runner that was created a moment ago is not denied on the other replica.
	r, token := f.create()
	found, err := two.Authenticate(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, r, *found)

	r.Paused = true
	r, err = f.runners().Update(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, one.Refresh(t.Context(), r.ID))
	known, _ := one.Runner(r.ID)
	require.True(t, known.Paused)
	f.until(two, func() bool { known, _ := two.Runner(r.ID); return known.Paused })

	// The old token is void as soon as a new one is stored.
	fresh, hash, err := runner.NewToken(routable.Payload{Cell: "local"})
	require.NoError(t, err)
	r, err = f.runners().Update(t.Context(), r.WithToken(hash, now))
	require.NoError(t, err)
	require.NoError(t, one.Refresh(t.Context(), r.ID))
	f.denied(one, token)
	f.until(two, func() bool { known, _ := two.Runner(r.ID); return known.TokenHash == hash })
	f.denied(two, token)
	f.denied(two, fresh) // it has expired

	require.NoError(t, f.runners().Delete(t.Context(), r.ID))
	require.NoError(t, one.Refresh(t.Context(), r.ID))
	_, exists := one.Runner(r.ID)
	require.False(t, exists)
	f.until(two, func() bool { _, exists := two.Runner(r.ID); return !exists })
	f.denied(two, fresh)
	require.Len(t, two.All(), 1)
}

func contactOf(r runner.Runner, systemID string, at time.Duration) runner.Contact {
	return runner.Contact{
		RunnerID: r.ID, SystemID: systemID, Info: runner.Info{Version: "17.9.3", Platform: "linux"}, Address: "192.0.2.1",
		At: now.Add(at),
	}
}

func TestContactCreatesAndUpdatesTheManager(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, _ := f.create()
	id, err := f.runners().StoreContact(t.Context(), contactOf(r, "s_1", 0), 10)
	require.NoError(t, err)
	again, err := f.runners().StoreContact(t.Context(), runner.Contact{
		RunnerID: r.ID, SystemID: "s_1", Info: runner.Info{Version: "18.0.0"}, At: now.Add(time.Minute),
	}, 10)
	require.NoError(t, err)
	require.Equal(t, id, again)
	_, err = f.runners().StoreContact(t.Context(), contactOf(r, "", -time.Minute), 10)
	require.NoError(t, err)
	managers, err := f.runners().Managers(t.Context(), r.ID)
	require.NoError(t, err)
	require.Len(t, managers, 2)
	require.Equal(t, runner.Manager{
		ID: id, RunnerID: r.ID, SystemID: "s_1", Info: runner.Info{Version: "18.0.0", Platform: "linux"},
		Address: "192.0.2.1", CreatedAt: now, ContactedAt: now.Add(time.Minute),
	}, managers[0])
	last, err := f.runners().LastContacts(t.Context(), r.ID, r.ID+1)
	require.NoError(t, err)
	require.Equal(t, map[int64]time.Time{r.ID: now.Add(time.Minute)}, last)

	require.NoError(t, f.runners().DeleteManager(t.Context(), r.ID, "s_1"))
	require.Equal(t, errcode.NotFound, fault.CodeOf(f.runners().DeleteManager(t.Context(), r.ID, "s_1")))
	require.NoError(t, f.runners().Delete(t.Context(), r.ID))
	require.Zero(t, f.count(`SELECT count(*) FROM runner_managers`))
	_, err = f.runners().StoreContact(t.Context(), contactOf(r, "s_1", 0), 10)
	require.ErrorIs(t, err, runner.ErrNoRunner)
}

// TestManagersOfARunnerAreBounded adds managers at once, several of them twice.
func TestManagersOfARunnerAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, _ := f.create()
	_, err := f.runners().StoreContact(t.Context(), contactOf(r, "oldest", -time.Hour), 5)
	require.NoError(t, err)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			if _, err := f.runners().StoreContact(context.Background(), contactOf(r, strconv.Itoa(i%4), 0), 5); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.Equal(t, 5, f.count(`SELECT count(*) FROM runner_managers`))
	_, err = f.runners().StoreContact(t.Context(), contactOf(r, "newest", time.Hour), 5)
	require.NoError(t, err)
	managers, err := f.runners().Managers(t.Context(), r.ID)
	require.NoError(t, err)
	require.Len(t, managers, 5)
	require.Equal(t, "newest", managers[0].SystemID)
	require.False(t, slices.ContainsFunc(managers, func(m runner.Manager) bool { return m.SystemID == "oldest" }))
}
