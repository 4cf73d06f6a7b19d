package recovery_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	libconfig "lockstep.internal/libs/config"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state"
	"lockstep.internal/tools/history"
	"lockstep.internal/tools/stack"
)

// withoutServices stops services, calls do and starts them again.
func withoutServices(s *fixture.System, services []string, do func()) {
	s.T.Helper()
	for _, name := range services {
		require.NoError(s.T, s.StopService(name))
	}
	defer func() { // even if do fails: later subtests need the services
		for _, name := range services {
			require.NoError(s.T, s.StartService(s.T.Context(), name))
		}
	}()
	do()
}

func stoppedDispatcherCatchesUp(s *fixture.System) {
	t := s.T
	w := s.CreateRunning("dispatcher-away")
	var created *fixture.Workspace
	var last *statev1.Workspace
	withoutServices(s, []string{s.DispatcherName()}, func() {
		w.Stop()
		w.Update(&statev1.WorkspaceOverrides{Image: fixture.MissingImage})
		w.Start()
		w.Update(&statev1.WorkspaceOverrides{Image: fixture.GoodImage})
		last = w.Stop()
		created = s.Create("created-without-dispatcher", fixture.GoodImage)
		require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, w.Get().GetActualState())
		require.Len(t, w.Pods(), 1)
	})
	w.AwaitStopped()
	created.AwaitRunning()
	require.Equal(
		t,
		[]int{1, int(last.GetDesiredRevision())},
		appliedRevisions(s, w),
		"intermediate desired states are never applied",
	)
}

// appliedRevisions returns the applied revisions of a workspace, without repetitions, in order.
func appliedRevisions(s *fixture.System, w *fixture.Workspace) []int {
	s.T.Helper()
	var revisions []int
	for _, r := range s.Records(topology.FamilyApplied) {
		e, err := event.Decode(r.Header, r.Data)
		require.NoError(s.T, err)
		if e.Type() != events.TypeApplied {
			continue
		}
		if applied := fixture.Decode[events.Applied](s.T, e); applied.WorkspaceID == w.ID {
			revisions = append(revisions, applied.DesiredRevision)
		}
	}
	return slices.Compact(revisions)
}

func stoppedWatcherCatchesUp(s *fixture.System) {
	t := s.T
	w := s.CreateRunning("watcher-away")
	var created *fixture.Workspace
	withoutServices(s, []string{s.WatcherName()}, func() {
		created = s.Create("created-without-watcher", fixture.GoodImage)
		stopping := w.Stop()
		unseen := w.Await(
			"applied",
			func(now *statev1.Workspace) bool { return now.GetAppliedRevision() == stopping.GetDesiredRevision() },
		)
		require.Equal(t, statev1.ActualState_ACTUAL_STATE_RUNNING, unseen.GetActualState())
		awaitReplicas(w, 0)
	})
	w.AwaitStopped()
	created.AwaitRunning()
}

func stoppedStateCatchesUp(s *fixture.System) {
	stopped, broken := s.CreateRunning("state-away"), s.CreateRunning("breaks-unseen")
	stopped.Stop()
	withoutServices(s, []string{stack.State}, func() { broken.BreakPod("crash-loop") })
	stopped.AwaitStopped()
	broken.AwaitFailed("CrashLoopBackOff")

	withoutServices(s, []string{stack.State}, func() { broken.BreakPod("") })
	broken.AwaitRunning()
}

func apiAcceptsChangesWithoutNATS(s *fixture.System) {
	t := s.T
	w := s.CreateRunning("nats-away")
	pod := w.PodUID()
	s.NATS().Down()
	w.Restart()
	broken := s.Create("created-without-nats", fixture.MissingImage)
	require.NoError(t, s.NATS().Restart())
	w.AwaitNewPod(pod)
	w.AwaitRunning()
	broken.AwaitFailed("ErrImagePull")
}

// everyRestartConverges restarts each part, and all at once, right after a change.
func everyRestartConverges(s *fixture.System) {
	t := s.T
	w := s.CreateRunning("restarts")
	services := []string{stack.State, s.WatcherName(), s.DispatcherName()}
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
		s.Run(name, func(t *testing.T) {
			w := w.In(t)
			w.Restart() // which passes every state from Running to Running
			var group errgroup.Group
			for _, restart := range restarts {
				group.Go(restart)
			}
			require.NoError(t, group.Wait())
			w.AwaitRestarted()
		})
	}
}

func deletedDeploymentIsRecreated(s *fixture.System) {
	t := s.T
	w := s.CreateRunning("loses-deployment")
	was, claim := w.Deployment().UID, w.Claim().UID
	reader := w.Events()
	reader.Until(events.ActualStateRunning)
	w.DeleteDeployment()
	seen := reader.Until(events.ActualStateRunning)
	require.Equal(t, events.ActualStateUnknown, seen.States[0], "noticed at once")
	require.NotEmpty(t, seen.DesiredChanges)
	require.Equal(t, new(events.DesiredStateCauseRedispatch), seen.DesiredChanges[0].Cause)
	w.AwaitRunning()
	require.NotEqual(t, was, w.Deployment().UID)
	require.Equal(t, claim, w.Claim().UID)
}

// eventsKeepTheirOrder restarts workspaces while the publisher of their events restarts, and reads the events of each
// from the stream. A publisher that has just started does not know which subjects have messages.
func eventsKeepTheirOrder(s *fixture.System) {
	t := s.T
	const cycles = 3
	lost := s.CreateRunning("ordered-after-takeover")
	reader := lost.Events()
	reader.Until(events.ActualStateRunning)
	require.NoError(t, s.Restart(t.Context(), stack.State))
	lost.DeleteDeployment()
	require.Empty(t, reader.Until(events.ActualStateUnknown).DesiredChanges, "the loss precedes its repair")
	lost.AwaitRunning()

	restarted := []*fixture.Workspace{s.CreateRunning("ordered-1"), s.CreateRunning("ordered-2")}
	for range cycles {
		for _, w := range restarted {
			w.Restart()
		}
		require.NoError(t, s.Restart(t.Context(), stack.State))
		for _, w := range restarted {
			w.AwaitRestarted()
		}
	}
	published := fixture.HistoryRecords(s.Records(topology.FamilyWorkspace))
	require.Empty(t, history.Workspaces(published))
	for _, w := range restarted {
		completed := 0
		for _, r := range published {
			e, err := event.Decode(r.Header, r.Data)
			require.NoError(t, err)
			if e.Subject() == w.ID && e.Type() == events.TypeWorkspaceDesiredStateChanged &&
				*fixture.Decode[events.WorkspaceDesiredStateChanged](t, e).Cause == events.DesiredStateCauseRestartCompleted {
				completed++
			}
		}
		require.Equal(t, cycles, completed)
	}
}

// lostPublicationKeepsOrder loses the event that a restarting workspace is stopped. The event that follows from it
// waits until the first one is published again.
func lostPublicationKeepsOrder(s *fixture.System, proxy *natsProxy) {
	t := s.T
	w := s.CreateRunning("ordered-after-loss")
	reader := w.Events()
	reader.Until(events.ActualStateRunning)
	isStop := publishes(events.TypeWorkspaceStateChanged, drop)
	lost := proxy.arm(func(message []byte) proxyAction {
		if !bytes.Contains(message, []byte(w.ID)) || !bytes.Contains(message, []byte(`"to":"stopped"`)) {
			return forward
		}
		return isStop(message)
	})
	w.Restart()
	select {
	case <-lost:
	case <-time.After(fixture.Timeout):
		require.FailNow(t, "the stop is not published")
	}
	changes := reader.Until(events.ActualStateStopped).DesiredChanges
	require.Len(t, changes, 1, "the restart completes after the stop")
	require.Equal(t, new(events.DesiredStateCauseUser), changes[0].Cause)
	changes = reader.Until(events.ActualStateRunning).DesiredChanges
	require.Len(t, changes, 1)
	require.Equal(t, new(events.DesiredStateCauseRestartCompleted), changes[0].Cause)
}

func lossIsReportedWithoutDispatcher(s *fixture.System) {
	t := s.T
	w := s.CreateRunning("lost-without-dispatcher")
	before := w.Get()
	withoutServices(s, []string{s.DispatcherName()}, func() {
		w.DeleteDeployment()
		noticed := w.Await("noticed", func(now *statev1.Workspace) bool {
			return now.GetActualState() == statev1.ActualState_ACTUAL_STATE_UNKNOWN
		})
		require.NotEmpty(t, noticed.GetMessage())
		require.Equal(t, before.GetDesiredRevision()+1, noticed.GetDesiredRevision())
	})
	w.AwaitRunning()
}

func unobservedLossIsRepaired(s *fixture.System) {
	t := s.T
	w := s.CreateRunning("lost-without-watcher")
	before := w.Get()
	withoutServices(s, []string{s.WatcherName()}, func() {
		w.DeleteDeployment()
		require.Equal(t, before.GetDesiredRevision(), w.Get().GetDesiredRevision())
	})
	w.Await("repaired", func(now *statev1.Workspace) bool {
		return fixture.Settled(statev1.ActualState_ACTUAL_STATE_RUNNING)(now) &&
			now.GetDesiredRevision() > before.GetDesiredRevision()
	})
	require.Equal(t, w.Get().GetDesiredRevision(), w.DeploymentRevision())
}

func terminationContinuesAfterRestart(s *fixture.System) {
	t := s.T
	w := s.CreateRunning("terminates-in-an-outage")
	w.Terminate()
	require.NoError(t, s.Restart(t.Context(), s.DispatcherName()))
	require.NoError(t, s.Restart(t.Context(), s.WatcherName()))
	require.NoError(t, s.Restart(t.Context(), stack.State))
	w.AwaitTerminated()
	w.RequireGone()
}

func awaitReplicas(w *fixture.Workspace, want int32) {
	w.T.Helper()
	w.AwaitCluster("the Deployment is scaled", func(ctx context.Context) (bool, error) {
		found, err := w.System.Kube.AppsV1().Deployments(w.Namespace).Get(ctx, w.Name, metav1.GetOptions{})
		return err == nil && found.Status.ObservedGeneration == found.Generation && found.Status.Replicas == want, err
	})
}

// TestOutages stops parts of a system while they are needed.
func TestOutages(t *testing.T) {
	t.Parallel()
	var proxy *natsProxy
	s := fixture.Start(t, func(service string, config any) {
		if service == stack.State {
			cfg := config.(*state.Config)
			server := cfg.NATS.URL
			if proxy == nil {
				proxy = newNATSProxy(t, server.Reveal())
			}
			cfg.Agents.URLs, cfg.NATS.URL = []string{server.Reveal()}, libconfig.URL(proxy.url())
		}
	})
	s.Sequence(
		fixture.Case{Name: "a stopped dispatcher catches up", Test: stoppedDispatcherCatchesUp},
		fixture.Case{Name: "a stopped watcher catches up", Test: stoppedWatcherCatchesUp},
		fixture.Case{Name: "a stopped state service catches up", Test: stoppedStateCatchesUp},
		fixture.Case{Name: "the API accepts changes without NATS", Test: apiAcceptsChangesWithoutNATS},
		fixture.Case{Name: "every restart converges", Test: everyRestartConverges},
		fixture.Case{Name: "a deleted Deployment is recreated", Test: deletedDeploymentIsRecreated},
		fixture.Case{Name: "events of a workspace keep their order", Test: eventsKeepTheirOrder},
		fixture.Case{Name: "a lost publication keeps the order", Test: func(s *fixture.System) {
			lostPublicationKeepsOrder(s, proxy)
		}},
		fixture.Case{Name: "a loss is reported while the dispatcher is stopped", Test: lossIsReportedWithoutDispatcher},
		fixture.Case{Name: "an unobserved loss is repaired", Test: unobservedLossIsRepaired},
		fixture.Case{Name: "termination continues after a restart", Test: terminationContinuesAfterRestart},
		fixture.Case{Name: "the history is consistent", Test: fixture.RequireConsistentHistory},
	)
}
