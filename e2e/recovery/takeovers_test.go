package recovery_test

import (
	"context"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/history"
	"lockstep.internal/tools/stack"
)

// TestTakeovers runs two replicas of each service and kills one of them.
func TestTakeovers(t *testing.T) {
	t.Parallel()
	s := fixture.StartPrograms(t, fixture.LongLeases)
	s.Sequence(
		fixture.Case{Name: "a second watcher takes over", Test: secondWatcherTakesOver},
		fixture.Case{Name: "a second dispatcher takes over", Test: secondDispatcherTakesOver},
		fixture.Case{Name: "a second state service serves and takes over", Test: secondStateServesAndTakesOver},
		fixture.Case{Name: "everything converges", Test: func(s *fixture.System) { s.RequireConverged() }},
		fixture.Case{Name: "the history is consistent", Test: fixture.RequireConsistentHistory},
		fixture.Case{Name: "nothing is applied twice", Test: func(s *fixture.System) {
			log := fixture.HistoryRecords(s.Records(topology.FamilyDesiredLog))
			require.Empty(s.T, history.Desired(fixture.HistoryRecords(s.Records(topology.FamilyWorkspace)), log))
			s.RequireApplied(log)
		}},
	)
}

// killBesideReplica adds a replica of a service and kills its leader. The returned function waits for the new leader.
func killBesideReplica(s *fixture.System, service string) (takenOver func()) {
	s.T.Helper()
	before, err := s.Leader(s.T.Context(), service)
	require.NoError(s.T, err)
	require.NotEmpty(s.T, before)
	addReplica(s, service)
	require.NoError(s.T, s.Kill(service))
	return func() {
		s.T.Helper()
		ctx, cancel := context.WithTimeout(s.T.Context(), fixture.Timeout)
		defer cancel()
		require.NoError(s.T, s.AwaitLeader(ctx, service, before))
	}
}

func addReplica(s *fixture.System, of string) string {
	s.T.Helper()
	name, err := s.AddReplica(s.T.Context(), of)
	require.NoError(s.T, err)
	return name
}

func secondWatcherTakesOver(s *fixture.System) {
	t := s.T
	w := s.CreateRunning("seen-by-two")
	before := len(resyncs(s))
	takenOver := killBesideReplica(s, s.WatcherName())
	w.Stop()
	takenOver()
	w.AwaitStopped()
	var begun []events.ObservedResyncBegun
	require.Eventually(
		t,
		func() bool { begun = resyncs(s); return len(begun) > before },
		fixture.Timeout,
		fixture.PollInterval,
	)
	require.Equal(t, events.ResyncCauseLeaderElected, begun[len(begun)-1].Cause)
	require.NoError(t, s.StartService(t.Context(), s.WatcherName()), "it stands by now")
	w.Start()
	w.AwaitRunning()
}

// resyncs returns the full resyncs that have begun.
func resyncs(s *fixture.System) []events.ObservedResyncBegun {
	s.T.Helper()
	var begun []events.ObservedResyncBegun
	for _, r := range s.Records(topology.FamilyObserved) {
		e, err := event.Decode(r.Header, r.Data)
		require.NoError(s.T, err)
		if e.Type() == events.TypeObservedResyncBegun {
			begun = append(begun, fixture.Decode[events.ObservedResyncBegun](s.T, e))
		}
	}
	return begun
}

func secondDispatcherTakesOver(s *fixture.System) {
	t := s.T
	w, leaving := s.CreateRunning("applied-by-two"), s.CreateRunning("terminated-by-two")
	leaving.Terminate()
	takenOver := killBesideReplica(s, s.DispatcherName())
	pod := w.PodUID()
	w.Restart()
	created := s.Create("created-between-leaders", fixture.GoodImage)
	takenOver()
	w.AwaitRestarted()
	require.NotEqual(t, pod, w.PodUID())
	created.AwaitRunning()
	leaving.AwaitTerminated()
	leaving.RequireGone()
	require.NoError(t, s.StartService(t.Context(), s.DispatcherName()), "it stands by now")
}

func secondStateServesAndTakesOver(s *fixture.System) {
	t := s.T
	replica := addReplica(s, stack.State)
	other := viaReplica(s, replica)
	w := other.CreateRunning("served-by-two")
	for _, dying := range []string{stack.State, replica} {
		staying := map[string]*fixture.System{stack.State: other, replica: s}[dying]
		killed := make(chan error, 1)
		started, changes := make(chan struct{}), 40
		go func() {
			<-started
			killed <- s.Kill(dying)
		}()
		here := *w
		here.System = staying
		for i := range changes { // each of which succeeds at the first attempt
			if i == changes/4 {
				close(started)
			}
			here.Update(&statev1.WorkspaceOverrides{Env: map[string]string{"NUMBER": dying + strconv.Itoa(i)}})
		}
		require.NoError(t, <-killed)
		here.AwaitRunning()
		staying.CreateRunning("created-without-" + map[string]string{stack.State: "first", replica: "second"}[dying])
		// The remaining replica now authorizes connections.
		require.NoError(t, s.Restart(t.Context(), s.DispatcherName()))
		require.NoError(t, s.StartService(t.Context(), dying))
	}
}

// viaReplica returns the system with the API of one replica.
func viaReplica(s *fixture.System, replica string) *fixture.System {
	s.T.Helper()
	token, err := s.AdminToken()
	require.NoError(s.T, err)
	transport := &http.Transport{}
	s.T.Cleanup(transport.CloseIdleConnections)
	here := *s
	here.API = client.New(&http.Client{Transport: transport}, "http://"+s.Address(replica, stack.ListenerAPI), token)
	return &here
}
