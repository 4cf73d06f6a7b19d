package e2e_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/history"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
)

// TestTakeovers is one system with two of each service, of which one dies without a word.
func TestTakeovers(t *testing.T) {
	t.Parallel()
	s := startPrograms(t, quickLeases)
	s.inTurn(
		promise{"a second watcher takes over", secondWatcherTakesOver},
		promise{"a second dispatcher takes over", secondDispatcherTakesOver},
		promise{"a second state serves, and takes over", secondStateServesAndTakesOver},
		promise{"all has converged", func(s *system) { s.requireConverged() }},
		promise{"the history is sound", requireSoundHistory},
		promise{"nothing was done twice", func(s *system) {
			log := told(s.records(topology.FamilyDesiredLog))
			require.Empty(s.t, history.Desired(told(s.records(topology.FamilyWorkspace)), log))
			s.requireApplied(log)
		}},
	)
}

// dies kills a service that leads, and returns what waits until another leads.
func (s *system) dies(service string) (takenOver func()) {
	s.t.Helper()
	before, err := s.leader(s.t.Context(), service)
	require.NoError(s.t, err)
	require.NotEmpty(s.t, before)
	require.NoError(s.t, s.Kill(service))
	return func() {
		s.t.Helper()
		require.NoError(s.t, s.awaitLeader(s.t.Context(), service, before))
	}
}

func (s *system) addReplica(of string) string {
	s.t.Helper()
	name, err := s.AddReplica(s.t.Context(), of)
	require.NoError(s.t, err)
	return name
}

func secondWatcherTakesOver(s *system) {
	t := s.t
	w := s.createRunning("seen-by-two")
	s.addReplica(s.watcher())
	takenOver := s.dies(s.watcher())
	before := len(s.resyncs())
	w.stop()
	takenOver()
	w.untilStopped()
	var begun []events.ObservedResyncBegun
	require.Eventually(t, func() bool { begun = s.resyncs(); return len(begun) > before }, patience, clusterTick)
	require.Equal(t, events.ResyncCauseLeaderElected, begun[len(begun)-1].Cause)
	require.NoError(t, s.StartService(t.Context(), s.watcher()), "it stands by now")
	w.start()
	w.untilRunning()
}

// resyncs are the full resyncs that have begun.
func (s *system) resyncs() []events.ObservedResyncBegun {
	s.t.Helper()
	var begun []events.ObservedResyncBegun
	for _, r := range s.records(topology.FamilyObserved) {
		e, err := event.Decode(r.header, r.data)
		require.NoError(s.t, err)
		if e.Type() == events.TypeObservedResyncBegun {
			begun = append(begun, decode[events.ObservedResyncBegun](s.t, e))
		}
	}
	return begun
}

func secondDispatcherTakesOver(s *system) {
	t := s.t
	w, leaving := s.createRunning("applied-by-two"), s.createRunning("terminated-by-two")
	s.addReplica(s.dispatcher())
	leaving.terminate()
	takenOver := s.dies(s.dispatcher())
	pod := w.podUID()
	w.restart()
	born := s.create("born-between-leaders", goodImage)
	takenOver()
	w.untilRestarted()
	require.NotEqual(t, pod, w.podUID())
	born.untilRunning()
	leaving.untilTerminated()
	leaving.requireGone()
	require.NoError(t, s.StartService(t.Context(), s.dispatcher()), "it stands by now")
}

func secondStateServesAndTakesOver(s *system) {
	t := s.t
	replica := s.addReplica(stack.State)
	other := s.through(replica)
	w := other.createRunning("served-by-two")
	for _, dying := range []string{stack.State, replica} {
		staying := map[string]*system{stack.State: other, replica: s}[dying]
		killed := make(chan error, 1)
		started, changes := make(chan struct{}), 40
		go func() {
			<-started
			killed <- s.Kill(dying)
		}()
		here := *w
		here.s = staying
		for i := range changes { // each of which succeeds at the first attempt
			if i == changes/4 {
				close(started)
			}
			here.update(&statev1.WorkspaceOverrides{Env: map[string]string{"NUMBER": dying + strconv.Itoa(i)}})
		}
		require.NoError(t, <-killed)
		here.untilRunning()
		staying.createRunning("born-without-" + map[string]string{stack.State: "first", replica: "second"}[dying])
		// Who is let in is for the one that is left to decide.
		require.NoError(t, s.Restart(t.Context(), s.dispatcher()))
		require.NoError(t, s.StartService(t.Context(), dying))
	}
}

// through is the system by way of one replica's API.
func (s *system) through(replica string) *system {
	s.t.Helper()
	token, err := s.AdminToken()
	require.NoError(s.t, err)
	transport := &http.Transport{}
	s.t.Cleanup(transport.CloseIdleConnections)
	here := *s
	here.api = client.New(&http.Client{Transport: transport}, "http://"+s.Address(replica, stack.ListenerAPI), token)
	return &here
}
