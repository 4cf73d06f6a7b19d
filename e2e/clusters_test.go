package e2e_test

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

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// TestClusters is one cell with a second cluster, which goes away, comes back, is replaced by an empty one, and is restored from a backup.
func TestClusters(t *testing.T) {
	t.Parallel()
	now := &aheadClock{}
	s := start(t, now.of("region"))
	r := s.newRegion("region")
	about := func(says string, test func(r *region)) promise {
		return promise{says, func(s *system) { test(r.in(s.t)) }}
	}
	s.inTurn(
		about("a cluster that is away slows nobody", clusterThatIsAwaySlowsNobody),
		about("a recreated cluster gets everything again", recreatedClusterGetsEverythingAgain),
		about("a restored cluster is caught up with", restoredClusterIsCaughtUpWith(now)),
		promise{"the history is sound", requireSoundHistory},
	)
}

// clusterThatIsAwaySlowsNobody has work for both clusters while one is away: the other's is done before anything is heard of the first.
func clusterThatIsAwaySlowsNobody(r *region) {
	t := r.t
	there, here := r.createRunning("there"), r.first.createRunning("here")
	epoch := r.epoch()
	var waiting *workspace
	r.without(func() {
		stopping := there.stop()
		waiting = r.create("born-there", goodImage)
		born := r.first.createRunning("born-here")
		here.stop()
		here.untilStopped()
		born.restart()
		born.untilRestarted()
		require.Zero(t, waiting.get().GetAppliedRevision())
		require.Less(t, there.get().GetAppliedRevision(), stopping.GetDesiredRevision())
		require.Contains(t, waiting.untilError("Unreachable").GetMessage(), "the cluster cannot be reached")
	})
	there.untilStopped()
	waiting.untilRunning()
	require.Equal(t, epoch, r.epoch(), "it is the same cluster in the same history")
}

// recreatedClusterGetsEverythingAgain replaces the cluster by an empty one, whose versions begin anew, under the agent that goes on.
func recreatedClusterGetsEverythingAgain(r *region) {
	running, stopped := r.createRunning("recreated-running"), r.createRunning("recreated-stopped")
	stopped.stop()
	stopped.untilStopped()
	leaving := r.createRunning("recreated-leaving")
	gone := r.createRunning("recreated-gone")
	gone.terminate()
	gone.untilTerminated()
	before, epoch, pod := r.version(), r.epoch(), running.podUID()
	ran, rested := running.anew(statev1.ActualState_ACTUAL_STATE_RUNNING), stopped.anew(statev1.ActualState_ACTUAL_STATE_STOPPED)

	var born *workspace
	r.without(func() {
		r.replaceStore("")
		leaving.terminate()
		born = r.create("recreated-born", goodImage)
	})
	born.untilRunning()
	leaving.untilTerminated()
	running.until("Running anew", ran)
	stopped.until("Stopped anew", rested)
	require.Less(r.t, r.version(), before, "versions are those of another history")
	require.Greater(r.t, r.epoch(), epoch)
	require.NotEqual(r.t, pod, running.podUID())
	stopped.awaitReplicas(0)
	gone.requireGone()
	leaving.requireGone()

	// What is told from now on counts, although its versions are lower than what was told before.
	running.stop()
	running.untilStopped()
	stopped.start()
	stopped.untilRunning()
	stopped.breakingIsNoticed()
}

// restoredClusterIsCaughtUpWith puts an older copy of the cluster's store in place, under the agent that goes on.
func restoredClusterIsCaughtUpWith(now *aheadClock) func(r *region) {
	return func(r *region) {
		t := r.t
		kept, stopped, started := r.createRunning("restored-kept"), r.createRunning("restored-stopped"), r.createRunning("restored-started")
		started.stop()
		started.untilStopped()
		ended := r.createRunning("restored-ended")
		var older string
		r.without(func() { older = r.copyStore() })

		r.passVersions(500)
		stopped.stop()
		stopped.untilStopped()
		started.start()
		started.untilRunning()
		ended.terminate()
		ended.untilTerminated()
		born := r.createRunning("restored-born")
		before, epoch, pod := r.version(), r.epoch(), born.podUID()
		again := born.anew(statev1.ActualState_ACTUAL_STATE_RUNNING)

		r.without(func() {
			r.replaceStore(older)
			now.pass(time.Hour) // what ended a moment ago may only be seen late
		})
		require.Less(t, r.version(), before, "versions went back")
		born.until("Running anew", again)
		require.NotEqual(t, pod, born.podUID())
		require.Greater(t, r.epoch(), epoch)
		stopped.awaitReplicas(0)
		stopped.untilStopped()
		started.awaitReplicas(1)
		started.untilRunning()
		kept.untilRunning()
		kept.breakingIsNoticed()
		r.endAgain(ended)
	}
}

// endAgain has what the cluster has again of a workspace that ended go. A dispatcher that is told all that is desired sees to it; where it knows that the
// workspace has ended, what is there is an orphan, and somebody's decision.
func (r *region) endAgain(w *workspace) {
	r.t.Helper()
	var found *statev1.Orphan
	gone := func(ctx context.Context) bool {
		_, err := r.kube.CoreV1().Namespaces().Get(ctx, w.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	awaitCluster(r.t, "what has ended is gone again, or an orphan", func(ctx context.Context) (bool, error) {
		listed, err := r.api.Workspaces.ListOrphans(ctx, connect.NewRequest(&statev1.ListOrphansRequest{AgentId: r.agent}))
		if err != nil || len(listed.Msg.GetOrphans()) == 0 {
			return gone(ctx), err
		}
		found = listed.Msg.GetOrphans()[0]
		return true, nil
	})
	if found != nil {
		require.Equal(r.t, w.id, found.GetWorkspaceId())
		_, err := r.api.Workspaces.DeleteOrphan(r.t.Context(), connect.NewRequest(&statev1.DeleteOrphanRequest{Orphan: found.GetReference()}))
		if !fault.Is(err, errcode.NotFound) { // the dispatcher was first
			require.NoError(r.t, err)
		}
	}
	awaitCluster(r.t, "it is gone again", func(ctx context.Context) (bool, error) { return gone(ctx), nil })
	require.Equal(r.t, statev1.ActualState_ACTUAL_STATE_TERMINATED, w.get().GetActualState())
}

// version is how far the versions of the cluster are.
func (r *region) version() int {
	r.t.Helper()
	list, err := r.kube.AppsV1().Deployments("").List(r.t.Context(), metav1.ListOptions{Limit: 1})
	require.NoError(r.t, err)
	version, err := strconv.Atoi(list.ResourceVersion)
	require.NoError(r.t, err)
	return version
}

// passVersions lets the cluster come further by so many versions, which nobody else takes note of.
func (r *region) passVersions(n int) {
	r.t.Helper()
	maps := r.kube.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	var writers errgroup.Group
	writers.SetLimit(8)
	for range n {
		writers.Go(func() error {
			_, err := maps.Create(r.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "version-"}}, metav1.CreateOptions{})
			return err
		})
	}
	require.NoError(r.t, writers.Wait())
}

// anew is to be in the state with everything applied, after the cluster was told of it once more.
func (w *workspace) anew(state statev1.ActualState) func(*statev1.Workspace) bool {
	w.t.Helper()
	before := w.get().GetDesiredRevision()
	return func(now *statev1.Workspace) bool { return settled(state)(now) && now.GetDesiredRevision() > before }
}

// breakingIsNoticed checks that what becomes of the workspace's pod is seen.
func (w *workspace) breakingIsNoticed() {
	w.t.Helper()
	w.breakPod("crash-loop")
	w.untilFailed("CrashLoopBackOff")
	w.breakPod("")
	w.untilRunning()
}
