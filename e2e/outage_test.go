package e2e_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

func (s *system) watcher() string    { return stack.WatcherOf(s.Agents()[0].Name) }
func (s *system) dispatcher() string { return stack.DispatcherOf(s.Agents()[0].Name) }

// without takes services away while something is done.
func (s *system) without(t *testing.T, services []string, do func()) {
	t.Helper()
	for _, name := range services {
		require.NoError(t, s.StopService(name))
	}
	do()
	for _, name := range services {
		require.NoError(t, s.StartService(t.Context(), name))
	}
}

func dispatcherCatchesUp(t *testing.T, s *system) {
	w := s.createRunning(t, "dispatcher-away")
	var born *workspace
	s.without(t, []string{s.dispatcher()}, func() {
		w.stop()
		born = s.create(t, "born-without-dispatcher", goodImage)
		require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, w.get().GetActualState())
		require.Len(t, w.pods(), 1)
	})
	w.untilStopped()
	born.untilRunning()
}

func watcherCatchesUp(t *testing.T, s *system) {
	w := s.createRunning(t, "watcher-away")
	var born *workspace
	s.without(t, []string{s.watcher()}, func() {
		born = s.create(t, "born-without-watcher", goodImage)
		stopping := w.stop()
		unseen := w.until("applied", func(now *statev1.Workspace) bool { return now.GetAppliedRevision() == stopping.GetDesiredRevision() })
		require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, unseen.GetActualState())
		w.awaitReplicas(0)
	})
	w.untilStopped()
	born.untilRunning()
}

func stateCatchesUp(t *testing.T, s *system) {
	stopped, broken := s.createRunning(t, "state-away"), s.createRunning(t, "breaks-unseen")
	stopped.stop()
	s.without(t, []string{stack.State}, func() { broken.breakPod("crash-loop") })
	stopped.untilStopped()
	broken.untilFailed("CrashLoopBackOff")

	s.without(t, []string{stack.State}, func() { broken.breakPod("") })
	broken.untilRunning()
}

func natsAwayKeepsNobodyFromWishing(t *testing.T, s *system) {
	w := s.createRunning(t, "nats-away")
	pod := w.podUID()
	s.NATS().Down()
	w.restart()
	broken := s.create(t, "born-without-nats", missingImage)
	require.NoError(t, s.NATS().Restart())
	w.awaitPodOtherThan(pod)
	w.untilRunning()
	broken.untilFailed("ErrImagePull")
}

// whateverRestartsAllConverges restarts each part, and all at once, right after something was asked for.
func whateverRestartsAllConverges(t *testing.T, s *system) {
	w := s.createRunning(t, "restarts")
	services := []string{stack.State, s.watcher(), s.dispatcher()}
	parts := map[string][]func() error{"nats": {s.NATS().Restart}}
	var all []func() error
	for _, name := range services {
		restart := func() error { return s.Restart(t.Context(), name) }
		parts[name] = append(parts[name], restart)
		all = append(all, restart)
	}
	parts["all services"] = all
	parts["all services and nats"] = append(all[:len(all):len(all)], s.NATS().Restart)
	for name, restarts := range parts {
		t.Run(name, func(t *testing.T) {
			w := &workspace{t: t, s: s, id: w.id, name: w.name, namespace: w.namespace, project: w.project, agent: w.agent}
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

func lostDeploymentComesBack(t *testing.T, s *system) {
	w := s.createRunning(t, "loses-deployment")
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

func lossIsNoticedWhileNobodyCanRepairIt(t *testing.T, s *system) {
	w := s.createRunning(t, "lost-without-dispatcher")
	before := w.get()
	s.without(t, []string{s.dispatcher()}, func() {
		w.deleteDeployment()
		noticed := w.until("noticed", func(now *statev1.Workspace) bool {
			return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_UNKNOWN
		})
		require.NotEmpty(t, noticed.GetMessage())
		require.Equal(t, before.GetDesiredRevision()+1, noticed.GetDesiredRevision())
	})
	w.untilRunning()
}

func lossNobodySawIsRepaired(t *testing.T, s *system) {
	w := s.createRunning(t, "lost-without-watcher")
	before := w.get()
	s.without(t, []string{s.watcher()}, func() {
		w.deleteDeployment()
		require.Equal(t, before.GetDesiredRevision(), w.get().GetDesiredRevision())
	})
	w.until("repaired", func(now *statev1.Workspace) bool {
		return settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) && now.GetDesiredRevision() > before.GetDesiredRevision()
	})
	require.Equal(t, w.get().GetDesiredRevision(), w.deploymentRevision())
}

func terminationGoesOnAfterARestart(t *testing.T, s *system) {
	w := s.createRunning(t, "terminates-in-an-outage")
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
