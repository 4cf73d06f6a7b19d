package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/watcher"
)

// TestResyncs has users create and change workspaces while a full resync is under way, that has listed the cluster before.
func TestResyncs(t *testing.T) {
	t.Parallel()
	var between *gate
	var credentials string
	s := start(t, func(_ string, config any) {
		cfg, is := config.(*watcher.Config)
		if !is {
			return
		}
		if between == nil {
			between = newGate(t, natsOf(t, cfg.CredentialsFile))
			credentials = between.through(t, cfg.CredentialsFile)
		}
		cfg.CredentialsFile = credentials
		cfg.Publish.AckTimeout = patience
	})
	for _, at := range []struct {
		name  string
		stops func(message []byte) stop
	}{
		{"before-its-begin", publishes(events.TypeObservedResyncBegun, stopBefore)},
		{"after-its-begin", publishes(events.TypeObservedResyncBegun, stopAfter)},
		{"before-its-end", publishes(events.TypeObservedResyncEnded, stopBefore)},
	} {
		t.Run(at.name, func(t *testing.T) { changesDuringAResyncAreKept(s.in(t), between, at.name, at.stops) })
	}
	requireSoundHistory(s)
}

func publishes(kind string, where stop) func(message []byte) stop {
	return func(message []byte) stop {
		if bytes.HasPrefix(message, []byte("HPUB ")) && bytes.Contains(message, []byte(kind+"\r\n")) {
			return where
		}
		return goOn
	}
}

func changesDuringAResyncAreKept(s *system, between *gate, name string, stops func(message []byte) stop) {
	t := s.t
	stopped, leaving, broken := s.createRunning("stops-"+name), s.createRunning("leaves-"+name), s.createRunning("breaks-"+name)
	require.NoError(t, s.StopService(s.watcher()))
	held := between.arm(stops)
	started := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() { started <- s.StartService(ctx, s.watcher()) }()
	select {
	case <-held:
	case <-ctx.Done():
		require.FailNow(t, "no full resync comes by")
	}

	born := s.create("born-"+name, goodImage)
	born.until("applied", func(now *statev1.Workspace) bool { return now.GetAppliedRevision() == now.GetDesiredRevision() })
	stopped.stop()
	stopped.awaitReplicas(0)
	broken.breakPod("crash-loop")
	leaving.terminate()
	leaving.untilTerminated()
	between.release()
	require.NoError(t, <-started)

	born.untilRunning()
	stopped.untilStopped()
	broken.untilFailed("CrashLoopBackOff")
	broken.breakPod("")
	broken.untilRunning()
	leaving.requireGone()
	s.requireResynced()
	for _, w := range []*workspace{born, stopped, leaving, broken} {
		require.Empty(t, s.redispatches(w), "nobody was given up for lost: %s", w.name)
	}
}

// requireResynced waits until the last full resync has come in whole.
func (s *system) requireResynced() {
	s.t.Helper()
	begun := s.resyncs()
	id := begun[len(begun)-1].ResyncID
	conn, err := pgx.Connect(s.t.Context(), s.Database().URL())
	require.NoError(s.t, err)
	defer conn.Close(s.t.Context())
	require.Eventually(s.t, func() bool {
		var outcome string
		err := conn.QueryRow(s.t.Context(), `select outcome from state.resyncs where resync_id = $1`, id).Scan(&outcome)
		return err == nil && outcome == "complete"
	}, patience, clusterTick)
}

// redispatches are the times that the system sent again what the cluster had lost.
func (s *system) redispatches(w *workspace) []events.WorkspaceDesiredStateChanged {
	s.t.Helper()
	var found []events.WorkspaceDesiredStateChanged
	for _, r := range s.records(topology.FamilyWorkspace) {
		if !bytes.Contains(r.data, []byte(w.id)) || r.header.Get("ce-type") != events.TypeWorkspaceDesiredStateChanged {
			continue
		}
		var e events.WorkspaceDesiredStateChanged
		require.NoError(s.t, json.Unmarshal(r.data, &e))
		if e.Cause != nil && *e.Cause == events.DesiredStateCauseRedispatch {
			found = append(found, e)
		}
	}
	return found
}
