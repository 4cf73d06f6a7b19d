package api_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/history"
)

// watching is a watch of which messages are awaited.
type watching struct {
	t      *testing.T
	stream *connect.ServerStreamForClient[deploysv1.WatchRolloutsResponse]
}

func (b *fixture) watch(user int64, request *deploysv1.WatchRolloutsRequest) *watching {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	b.t.Cleanup(cancel)
	stream, err := b.as(user).WatchRollouts(ctx, connect.NewRequest(request))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = stream.Close() })
	return &watching{t: b.t, stream: stream}
}

func (w *watching) next() *deploysv1.WatchRolloutsResponse {
	w.t.Helper()
	require.True(w.t, w.stream.Receive(), "%v", w.stream.Err())
	return w.stream.Msg()
}

// ends checks that nothing more comes, and why.
func (w *watching) ends(code errcode.Code) {
	w.t.Helper()
	require.False(w.t, w.stream.Receive(), "%v", w.stream.Msg())
	refused(w.t, code, w.stream.Err())
}

// over is the rollout when it has completed.
func over(r history.Rollout) history.Rollout {
	r.LastSequence, r.State, r.FirstSequence = r.LastSequence+1, new(history.Completed), nil
	r.EndedAt, r.DurationMs = new(r.StartedAt.Add(time.Second)), new(int64(1000))
	return r
}

func TestWatchStreamsRunningRolloutsAndChanges(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	first, done, others := b.rollout(agent), b.rollout(agent), b.rollout(otherAgent)
	b.put(first, done, others)
	b.put(over(done))
	w := b.watch(reader, &deploysv1.WatchRolloutsRequest{})
	got := w.next()
	require.Equal(t, first.ID, got.GetRollout().GetId())
	require.True(t, got.GetInitial())
	second := b.rollout(agent)
	b.put(over(others))
	b.put(second)
	got = w.next()
	require.Equal(t, second.ID, got.GetRollout().GetId())
	require.False(t, got.GetInitial())
	b.put(over(first))
	got = w.next()
	require.Equal(t, first.ID, got.GetRollout().GetId())
	require.Equal(t, deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED, got.GetRollout().GetState())

	with := b.watch(reader, &deploysv1.WatchRolloutsRequest{Ended: 10, Filter: &deploysv1.RolloutFilter{Name: done.Name}})
	require.Equal(t, done.ID, with.next().GetRollout().GetId())
}

func TestWatchEndsWhenTheServerStops(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	r := b.rollout(agent)
	b.put(r)
	w, idle := b.watch(reader, &deploysv1.WatchRolloutsRequest{}), b.watch(reader, &deploysv1.WatchRolloutsRequest{Filter: &deploysv1.RolloutFilter{Name: "none"}})
	require.Equal(t, r.ID, w.next().GetRollout().GetId())
	b.stop()
	w.ends(errcode.Unavailable)
	idle.ends(errcode.Unavailable)
}

func TestWatchEndsWithTheAccessOfItsCaller(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		user  int64
		takes func(*fakeDirectory)
		code  errcode.Code
	}{
		"blocked":              {reader, func(k *fakeDirectory) { k.users[reader] = directory.User{ID: reader, Blocked: true} }, errcode.PermissionDenied},
		"gone":                 {reader, func(k *fakeDirectory) { delete(k.users, reader) }, errcode.Unauthenticated},
		"no administrator now": {admin, func(k *fakeDirectory) { k.users[admin] = directory.User{ID: admin} }, errcode.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			r := b.rollout(agent)
			b.put(r)
			w := b.watch(c.user, &deploysv1.WatchRolloutsRequest{})
			require.Equal(t, r.ID, w.next().GetRollout().GetId())
			b.directory.write(func() { c.takes(b.directory) })
			w.ends(c.code)
		})
	}
}

func TestWatchHidesProjectsThatTheCallerLeft(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.directory.write(func() { b.directory.reads[reader] = []int64{agent, otherAgent} })
	left, kept := b.rollout(agent), b.rollout(otherAgent)
	b.put(left, kept)
	w := b.watch(reader, &deploysv1.WatchRolloutsRequest{})
	require.ElementsMatch(t, []string{left.ID, kept.ID}, []string{w.next().GetRollout().GetId(), w.next().GetRollout().GetId()})
	b.directory.write(func() { b.directory.reads[reader] = []int64{otherAgent} })
	b.put(over(left), b.rollout(agent))
	b.put(over(kept))
	require.Equal(t, kept.ID, w.next().GetRollout().GetId(), "and nothing before it")
}

// A connection of the listener that breaks loses notifications: what changed meanwhile is told when
// it is back.
func TestWatchMissesNothingWhileTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	r := b.rollout(agent)
	b.put(r)
	w := b.watch(reader, &deploysv1.WatchRolloutsRequest{})
	require.Equal(t, r.ID, w.next().GetRollout().GetId())
	var cut int
	require.NoError(t, b.pool.QueryRow(t.Context(), `
		select count(pg_terminate_backend(pid)) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database() and query like 'listen %'`).Scan(&cut))
	require.Equal(t, 1, cut)
	b.put(over(r))
	require.Equal(t, deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED, w.next().GetRollout().GetState())
}
