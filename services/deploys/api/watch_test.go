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

// watching is a running WatchRollouts call.
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

// requireEnd checks that the stream ends with an error code and without another message.
func (w *watching) requireEnd(code errcode.Code) {
	w.t.Helper()
	require.False(w.t, w.stream.Receive(), "%v", w.stream.Msg())
	requireCode(w.t, code, w.stream.Err())
}

// completed returns the rollout after its completion.
func completed(r history.Rollout) history.Rollout {
	r.LastSequence, r.State, r.FirstSequence = r.LastSequence+1, new(history.Completed), nil
	r.EndedAt, r.DurationMs = new(r.StartedAt.Add(time.Second)), new(int64(1000))
	return r
}

func TestWatchStreamsRunningRolloutsAndChanges(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	first, done, others := b.rollout(agent), b.rollout(agent), b.rollout(otherAgent)
	b.put(first, done, others)
	b.put(completed(done))
	w := b.watch(reader, &deploysv1.WatchRolloutsRequest{})
	got := w.next()
	require.Equal(t, first.ID, got.GetRollout().GetId())
	require.True(t, got.GetInitial())
	second := b.rollout(agent)
	b.put(completed(others))
	b.put(second)
	got = w.next()
	require.Equal(t, second.ID, got.GetRollout().GetId())
	require.False(t, got.GetInitial())
	b.put(completed(first))
	got = w.next()
	require.Equal(t, first.ID, got.GetRollout().GetId())
	require.Equal(t, deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED, got.GetRollout().GetState())

	with := b.watch(reader, &deploysv1.WatchRolloutsRequest{Ended: 10, Filter: &deploysv1.RolloutFilter{Name: done.Name}})
	require.Equal(t, done.ID, with.next().GetRollout().GetId())
}

func TestWatchEndsWhenServerStops(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	r := b.rollout(agent)
	b.put(r)
	w, idle := b.watch(reader, &deploysv1.WatchRolloutsRequest{}),
		b.watch(reader, &deploysv1.WatchRolloutsRequest{Filter: &deploysv1.RolloutFilter{Name: "none"}})
	require.Equal(t, r.ID, w.next().GetRollout().GetId())
	b.stop()
	w.requireEnd(errcode.Unavailable)
	idle.requireEnd(errcode.Unavailable)
}

func TestWatchEndsWhenCallerLosesAccess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		user   int64
		change func(*fakeDirectory)
		code   errcode.Code
	}{
		"blocked": {reader, func(k *fakeDirectory) {
			k.users[reader] = directory.User{ID: reader, Blocked: true}
		}, errcode.PermissionDenied},
		"deleted": {reader, func(k *fakeDirectory) { delete(k.users, reader) }, errcode.Unauthenticated},
		"no longer an administrator": {
			admin, func(k *fakeDirectory) { k.users[admin] = directory.User{ID: admin} }, errcode.Unavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			r := b.rollout(agent)
			b.put(r)
			w := b.watch(c.user, &deploysv1.WatchRolloutsRequest{})
			require.Equal(t, r.ID, w.next().GetRollout().GetId())
			b.directory.write(func() { c.change(b.directory) })
			w.requireEnd(c.code)
		})
	}
}

func TestWatchSendsNoRolloutsAfterCallerLosesRole(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.directory.write(func() { b.directory.reads[reader] = []int64{agent, otherAgent} })
	left, kept := b.rollout(agent), b.rollout(otherAgent)
	b.put(left, kept)
	w := b.watch(reader, &deploysv1.WatchRolloutsRequest{})
	require.ElementsMatch(t, []string{
		left.ID, kept.ID,
	}, []string{w.next().GetRollout().GetId(), w.next().GetRollout().GetId()})
	b.directory.write(func() { b.directory.reads[reader] = []int64{otherAgent} })
	b.put(completed(left), b.rollout(agent))
	b.put(completed(kept))
	require.Equal(t, kept.ID, w.next().GetRollout().GetId(), "and no other rollout before it")
}

// A broken connection of the listener loses notifications. After the reconnect, the watch sends the changes that it
// missed.
func TestWatchMissesNoChangeWhileListenerReconnects(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	r := b.rollout(agent)
	b.put(r)
	w := b.watch(reader, &deploysv1.WatchRolloutsRequest{})
	require.Equal(t, r.ID, w.next().GetRollout().GetId())
	var terminated int
	require.NoError(t, b.pool.QueryRow(t.Context(), `
		select count(pg_terminate_backend(pid)) from pg_stat_activity
		where pid <> pg_backend_pid() and datname = current_database() and query like 'listen %'`).Scan(&terminated))
	require.Equal(t, 1, terminated)
	b.put(completed(r))
	require.Equal(t, deploysv1.RolloutState_ROLLOUT_STATE_COMPLETED, w.next().GetRollout().GetState())
}
