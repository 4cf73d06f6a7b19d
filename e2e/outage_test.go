package e2e_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

func (s *system) watcher() string    { return stack.WatcherOf(s.Agents()[0].Name) }
func (s *system) dispatcher() string { return stack.DispatcherOf(s.Agents()[0].Name) }

// without takes services away while something is done.
func (s *system) without(services []string, do func()) {
	s.t.Helper()
	for _, name := range services {
		require.NoError(s.t, s.StopService(name))
	}
	defer func() { // whatever came of it: others need them
		for _, name := range services {
			require.NoError(s.t, s.StartService(s.t.Context(), name))
		}
	}()
	do()
}

func dispatcherCatchesUp(s *system) {
	t := s.t
	w := s.createRunning("dispatcher-away")
	var born *workspace
	var last *statev1.Workspace
	s.without([]string{s.dispatcher()}, func() {
		w.stop()
		w.update(&statev1.WorkspaceOverrides{Image: missingImage})
		w.start()
		w.update(&statev1.WorkspaceOverrides{Image: goodImage})
		last = w.stop()
		born = s.create("born-without-dispatcher", goodImage)
		require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, w.get().GetActualState())
		require.Len(t, w.pods(), 1)
	})
	w.untilStopped()
	born.untilRunning()
	require.Equal(t, []int{1, int(last.GetDesiredRevision())}, s.appliedRevisions(w), "what was wanted in between is never applied")
}

// appliedRevisions are the revisions of a workspace that were applied, each once, in order.
func (s *system) appliedRevisions(w *workspace) []int {
	s.t.Helper()
	var revisions []int
	for _, r := range s.records(topology.FamilyApplied) {
		e, err := event.Decode(r.header, r.data)
		require.NoError(s.t, err)
		if e.Type() != events.TypeApplied {
			continue
		}
		if applied := decode[events.Applied](s.t, e); applied.WorkspaceID == w.id {
			revisions = append(revisions, applied.DesiredRevision)
		}
	}
	return slices.Compact(revisions)
}

func watcherCatchesUp(s *system) {
	t := s.t
	w := s.createRunning("watcher-away")
	var born *workspace
	s.without([]string{s.watcher()}, func() {
		born = s.create("born-without-watcher", goodImage)
		stopping := w.stop()
		unseen := w.until("applied", func(now *statev1.Workspace) bool { return now.GetAppliedRevision() == stopping.GetDesiredRevision() })
		require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, unseen.GetActualState())
		w.awaitReplicas(0)
	})
	w.untilStopped()
	born.untilRunning()
}

func stateCatchesUp(s *system) {
	stopped, broken := s.createRunning("state-away"), s.createRunning("breaks-unseen")
	stopped.stop()
	s.without([]string{stack.State}, func() { broken.breakPod("crash-loop") })
	stopped.untilStopped()
	broken.untilFailed("CrashLoopBackOff")

	s.without([]string{stack.State}, func() { broken.breakPod("") })
	broken.untilRunning()
}

func natsAwayKeepsNobodyFromWishing(s *system) {
	t := s.t
	w := s.createRunning("nats-away")
	pod := w.podUID()
	s.NATS().Down()
	w.restart()
	broken := s.create("born-without-nats", missingImage)
	require.NoError(t, s.NATS().Restart())
	w.awaitPodOtherThan(pod)
	w.untilRunning()
	broken.untilFailed("ErrImagePull")
}

// whateverRestartsAllConverges restarts each part, and all at once, right after something was asked for.
func whateverRestartsAllConverges(s *system) {
	t := s.t
	w := s.createRunning("restarts")
	services := []string{stack.State, s.watcher(), s.dispatcher()}
	parts := map[string][]func() error{"nats": {s.NATS().Restart}}
	all := make([]func() error, 0, len(services))
	for _, name := range services {
		restart := func() error { return s.Restart(t.Context(), name) }
		parts[name] = append(parts[name], restart)
		all = append(all, restart)
	}
	parts["all services"] = all
	parts["all services and nats"] = append(slices.Clip(all), s.NATS().Restart)
	for name, restarts := range parts {
		t.Run(name, func(t *testing.T) {
			w := w.in(t)
			w.restart() // which passes every state from Running to Running
			var group errgroup.Group
			for _, restart := range restarts {
				group.Go(restart)
			}
			require.NoError(t, group.Wait())
			w.untilRestarted()
		})
	}
}

func (w *workspace) untilRestarted() *statev1.Workspace {
	w.t.Helper()
	return w.until("Running again", func(now *statev1.Workspace) bool {
		return settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) && now.GetDesiredState() == statev1.DesiredState_DESIRED_STATE_RUNNING
	})
}

func lostDeploymentComesBack(s *system) {
	t := s.t
	w := s.createRunning("loses-deployment")
	was, claim := w.deployment().UID, w.claim().UID
	story := w.follow()
	story.through(events.ActualStateRunning)
	w.deleteDeployment()
	told := story.through(events.ActualStateRunning)
	require.Equal(t, events.ActualStateUnknown, told.states[0], "noticed at once")
	require.NotEmpty(t, told.wishes)
	require.Equal(t, new(events.DesiredStateCauseRedispatch), told.wishes[0].Cause)
	w.untilRunning()
	require.NotEqual(t, was, w.deployment().UID)
	require.Equal(t, claim, w.claim().UID)
}

func lossIsNoticedWhileNobodyCanRepairIt(s *system) {
	t := s.t
	w := s.createRunning("lost-without-dispatcher")
	before := w.get()
	s.without([]string{s.dispatcher()}, func() {
		w.deleteDeployment()
		noticed := w.until("noticed", func(now *statev1.Workspace) bool {
			return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_UNKNOWN
		})
		require.NotEmpty(t, noticed.GetMessage())
		require.Equal(t, before.GetDesiredRevision()+1, noticed.GetDesiredRevision())
	})
	w.untilRunning()
}

func lossNobodySawIsRepaired(s *system) {
	t := s.t
	w := s.createRunning("lost-without-watcher")
	before := w.get()
	s.without([]string{s.watcher()}, func() {
		w.deleteDeployment()
		require.Equal(t, before.GetDesiredRevision(), w.get().GetDesiredRevision())
	})
	w.until("repaired", func(now *statev1.Workspace) bool {
		return settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) && now.GetDesiredRevision() > before.GetDesiredRevision()
	})
	require.Equal(t, w.get().GetDesiredRevision(), w.deploymentRevision())
}

func terminationGoesOnAfterARestart(s *system) {
	t := s.t
	w := s.createRunning("terminates-in-an-outage")
	w.terminate()
	require.NoError(t, s.Restart(t.Context(), s.dispatcher()))
	require.NoError(t, s.Restart(t.Context(), s.watcher()))
	require.NoError(t, s.Restart(t.Context(), stack.State))
	w.untilTerminated()
	w.requireGone()
}

func (w *workspace) awaitReplicas(want int32) {
	w.t.Helper()
	w.awaitCluster("the Deployment is scaled", func(ctx context.Context) (bool, error) {
		found, err := w.s.kube.AppsV1().Deployments(w.namespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && found.Status.ObservedGeneration == found.Generation && found.Status.Replicas == want, err
	})
}
