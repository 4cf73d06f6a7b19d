package recovery_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// TestClusters runs a second cluster that goes away, comes back, is replaced by an empty one and is
// restored from a backup.
func TestClusters(t *testing.T) {
	t.Parallel()
	now := &fixture.Clock{}
	s := fixture.Start(t, now.For("region"))
	r := newSecondCluster(s, "region")
	about := func(name string, test func(r *secondCluster)) fixture.Case {
		return fixture.Case{Name: name, Test: func(s *fixture.System) { test(r.in(s.T)) }}
	}
	s.Sequence(
		about("an unreachable cluster delays no other", unreachableClusterDelaysNoOther),
		about("a recreated cluster is repopulated", recreatedClusterIsRepopulated),
		about("a restored cluster converges", restoredClusterConverges(now)),
		fixture.Case{Name: "the history is consistent", Test: fixture.RequireConsistentHistory},
	)
}

// unreachableClusterDelaysNoOther creates work for both clusters while one is unreachable. The
// other's work completes.
func unreachableClusterDelaysNoOther(r *secondCluster) {
	t := r.T
	there, here := r.CreateRunning("there"), r.primary.CreateRunning("here")
	epoch := r.epoch()
	var waiting *fixture.Workspace
	r.stoppedDuring(func() {
		stopping := there.Stop()
		waiting = r.Create("created-there", fixture.GoodImage)
		created := r.primary.CreateRunning("created-here")
		here.Stop()
		here.AwaitStopped()
		created.Restart()
		created.AwaitRestarted()
		require.Zero(t, waiting.Get().GetAppliedRevision())
		require.Less(t, there.Get().GetAppliedRevision(), stopping.GetDesiredRevision())
		require.Contains(t, waiting.AwaitError("Unreachable").GetMessage(), "the cluster cannot be reached")
	})
	there.AwaitStopped()
	waiting.AwaitRunning()
	require.Equal(t, epoch, r.epoch(), "it is the same cluster in the same history")
}

// recreatedClusterIsRepopulated replaces the cluster by an empty one with lower resource versions.
// The agent stays.
func recreatedClusterIsRepopulated(r *secondCluster) {
	running, stopped := r.CreateRunning("recreated-running"), r.CreateRunning("recreated-stopped")
	stopped.Stop()
	stopped.AwaitStopped()
	leaving := r.CreateRunning("recreated-leaving")
	gone := r.CreateRunning("recreated-gone")
	gone.Terminate()
	gone.AwaitTerminated()
	before, epoch, pod := r.version(), r.epoch(), running.PodUID()
	ran, rested := redispatched(
		running,
		statev1.ActualState_ACTUAL_STATE_RUNNING,
	), redispatched(
		stopped,
		statev1.ActualState_ACTUAL_STATE_STOPPED,
	)

	var created *fixture.Workspace
	r.stoppedDuring(func() {
		r.replaceStore("")
		leaving.Terminate()
		created = r.Create("recreated-created", fixture.GoodImage)
	})
	created.AwaitRunning()
	leaving.AwaitTerminated()
	running.Await("Running anew", ran)
	stopped.Await("Stopped anew", rested)
	require.Less(r.T, r.version(), before, "versions are those of another history")
	require.Greater(r.T, r.epoch(), epoch)
	require.NotEqual(r.T, pod, running.PodUID())
	awaitReplicas(stopped, 0)
	gone.RequireGone()
	leaving.RequireGone()

	// Later observations count although their resource versions are lower.
	running.Stop()
	running.AwaitStopped()
	stopped.Start()
	stopped.AwaitRunning()
	requireFailureObserved(stopped)
}

// restoredClusterConverges replaces the cluster's store by an older copy. The agent stays.
func restoredClusterConverges(now *fixture.Clock) func(r *secondCluster) {
	return func(r *secondCluster) {
		t := r.T
		kept, stopped, started := r.CreateRunning(
			"restored-kept",
		), r.CreateRunning(
			"restored-stopped",
		), r.CreateRunning(
			"restored-started",
		)
		started.Stop()
		started.AwaitStopped()
		ended := r.CreateRunning("restored-ended")
		var older string
		r.stoppedDuring(func() { older = r.copyStore() })

		r.advanceVersions(500)
		stopped.Stop()
		stopped.AwaitStopped()
		started.Start()
		started.AwaitRunning()
		ended.Terminate()
		ended.AwaitTerminated()
		created := r.CreateRunning("restored-created")
		before, epoch, pod := r.version(), r.epoch(), created.PodUID()
		again := redispatched(created, statev1.ActualState_ACTUAL_STATE_RUNNING)

		r.stoppedDuring(func() {
			r.replaceStore(older)
			now.Advance(time.Hour) // what ended a moment ago may only be seen late
		})
		require.Less(t, r.version(), before, "versions went back")
		created.Await("Running anew", again)
		require.NotEqual(t, pod, created.PodUID())
		require.Greater(t, r.epoch(), epoch)
		awaitReplicas(stopped, 0)
		stopped.AwaitStopped()
		awaitReplicas(started, 1)
		started.AwaitRunning()
		kept.AwaitRunning()
		requireFailureObserved(kept)
		r.awaitTerminatedAgain(ended)
	}
}

// awaitTerminatedAgain waits until a terminated workspace that the restore brought back is gone. A
// dispatcher that replays all desired states deletes it. One that remembers the end reports an
// orphan, which the test deletes.
func (r *secondCluster) awaitTerminatedAgain(w *fixture.Workspace) {
	r.T.Helper()
	var found *statev1.Orphan
	gone := func(ctx context.Context) bool {
		_, err := r.Kube.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	const want = "terminated workspaces are deleted or reported as orphans"
	fixture.AwaitCluster(r.T, want, func(ctx context.Context) (bool, error) {
		listed, err := r.API.Workspaces.ListOrphans(ctx, connect.NewRequest(&statev1.ListOrphansRequest{AgentId: r.AgentID}))
		if err != nil || len(listed.Msg.GetOrphans()) == 0 {
			return gone(ctx), err
		}
		found = listed.Msg.GetOrphans()[0]
		return true, nil
	})
	if found != nil {
		require.Equal(r.T, w.ID, found.GetWorkspaceId())
		_, err := r.API.Workspaces.DeleteOrphan(
			r.T.Context(),
			connect.NewRequest(&statev1.DeleteOrphanRequest{Orphan: found.GetReference()}),
		)
		if !fault.Is(err, errcode.NotFound) { // the dispatcher was first
			require.NoError(r.T, err)
		}
	}
	fixture.AwaitCluster(r.T, "it is gone again", func(ctx context.Context) (bool, error) { return gone(ctx), nil })
	require.Equal(r.T, statev1.ActualState_ACTUAL_STATE_TERMINATED, w.Get().GetActualState())
}

// version returns the cluster's current resource version.
func (r *secondCluster) version() int {
	r.T.Helper()
	list, err := r.Kube.AppsV1().Deployments("").List(r.T.Context(), metav1.ListOptions{Limit: 1})
	require.NoError(r.T, err)
	version, err := strconv.Atoi(list.ResourceVersion)
	require.NoError(r.T, err)
	return version
}

// advanceVersions advances the cluster's resource version by n.
func (r *secondCluster) advanceVersions(n int) {
	r.T.Helper()
	maps := r.Kube.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	var writers errgroup.Group
	writers.SetLimit(8)
	for range n {
		writers.Go(func() error {
			_, err := maps.Create(
				r.T.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "version-"}},
				metav1.CreateOptions{},
			)
			return err
		})
	}
	require.NoError(r.T, writers.Wait())
}

// redispatched reports whether the workspace reached the state with a newer desired revision.
func redispatched(w *fixture.Workspace, state statev1.ActualState) func(*statev1.Workspace) bool {
	w.T.Helper()
	before := w.Get().GetDesiredRevision()
	return func(now *statev1.Workspace) bool {
		return fixture.Settled(state)(now) && now.GetDesiredRevision() > before
	}
}

// requireFailureObserved checks that a failure of the workspace's pod is observed.
func requireFailureObserved(w *fixture.Workspace) {
	w.T.Helper()
	w.BreakPod("crash-loop")
	w.AwaitFailed("CrashLoopBackOff")
	w.BreakPod("")
	w.AwaitRunning()
}
