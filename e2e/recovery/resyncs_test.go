package recovery_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/watcher"
)

// TestResyncs creates and changes workspaces while a full resync is held up after it has listed the
// cluster.
func TestResyncs(t *testing.T) {
	t.Parallel()
	var proxy *natsProxy
	var credentials string
	s := fixture.Start(t, func(_ string, config any) {
		cfg, is := config.(*watcher.Config)
		if !is {
			return
		}
		if proxy == nil {
			proxy = newNATSProxy(t, natsAddress(t, cfg.CredentialsFile))
			credentials = proxy.credentialsThrough(t, cfg.CredentialsFile)
		}
		cfg.CredentialsFile = credentials
		cfg.Publish.AckTimeout = fixture.Timeout
	})
	var broken []*fixture.Workspace
	for _, at := range []struct {
		name string
		hold func(message []byte) proxyAction
	}{
		{"before-its-begin", publishes(events.TypeObservedResyncBegun, holdBefore)},
		{"after-its-begin", publishes(events.TypeObservedResyncBegun, holdAfter)},
		{"before-its-members", publishes(events.TypeObservedMembers, holdBefore)},
		{"after-its-members", publishes(events.TypeObservedMembers, holdAfter)},
		{"before-its-end", publishes(events.TypeObservedResyncEnded, holdBefore)},
	} {
		t.Run(at.name, func(t *testing.T) {
			broken = append(broken, changesDuringResyncAreKept(s.In(t), proxy, at.name, at.hold))
		})
	}
	t.Run("broken pods run again", func(t *testing.T) { brokenPodsRunAgain(s.In(t), broken) })
	fixture.RequireConsistentHistory(s)
}

func publishes(kind string, where proxyAction) func(message []byte) proxyAction {
	return func(message []byte) proxyAction {
		if bytes.HasPrefix(message, []byte("HPUB ")) && bytes.Contains(message, []byte(kind+"\r\n")) {
			return where
		}
		return forward
	}
}

// changesDuringResyncAreKept creates, stops, deletes and breaks workspaces while a full resync is held up. It returns
// the one whose container crashes.
func changesDuringResyncAreKept(
	s *fixture.System, proxy *natsProxy, name string, hold func(message []byte) proxyAction,
) *fixture.Workspace {
	t := s.T
	stopped, leaving := s.CreateRunning("stops-"+name), s.CreateRunning("leaves-"+name)
	broken := s.CreateRunning("breaks-" + name)
	require.NoError(t, s.StopService(s.WatcherName()))
	held := proxy.arm(hold)
	started := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Timeout)
	defer cancel()
	go func() { started <- s.StartService(ctx, s.WatcherName()) }()
	select {
	case <-held:
	case <-ctx.Done():
		require.FailNow(t, "no full resync begins")
	}

	created := s.Create("created-"+name, fixture.GoodImage)
	created.Await(
		"applied",
		func(now *statev1.Workspace) bool { return now.GetAppliedRevision() == now.GetDesiredRevision() },
	)
	stopped.Stop()
	awaitReplicas(stopped, 0)
	broken.BreakPod("crash-loop")
	leaving.Terminate()
	leaving.AwaitTerminated()
	proxy.release()
	require.NoError(t, <-started)

	created.AwaitRunning()
	stopped.AwaitStopped()
	broken.AwaitFailed("CrashLoopBackOff")
	leaving.RequireGone()
	requireResynced(s)
	for _, w := range []*fixture.Workspace{created, stopped, leaving, broken} {
		require.Empty(t, redispatches(s, w), "no workspace is reported lost: %s", w.Name)
	}
	return broken
}

// brokenPodsRunAgain repairs all pods and then waits for them: in CrashLoopBackOff the kubelet delays each restart by
// up to 30 s.
func brokenPodsRunAgain(s *fixture.System, broken []*fixture.Workspace) {
	for _, w := range broken {
		w.T, w.System = s.T, s
		w.BreakPod("")
	}
	for _, w := range broken {
		w.AwaitRunning()
		require.Empty(s.T, redispatches(s, w), "no workspace is reported lost: %s", w.Name)
	}
}

// requireResynced waits until the last full resync is complete.
func requireResynced(s *fixture.System) {
	s.T.Helper()
	begun := resyncs(s)
	id := begun[len(begun)-1].ResyncID
	conn, err := pgx.Connect(s.T.Context(), s.Database().URL())
	require.NoError(s.T, err)
	defer conn.Close(s.T.Context())
	require.Eventually(s.T, func() bool {
		var outcome string
		err := conn.QueryRow(s.T.Context(), `select outcome from state.resyncs where resync_id = $1`, id).Scan(&outcome)
		return err == nil && outcome == "complete"
	}, fixture.Timeout, fixture.PollInterval)
}

// redispatches returns the events for desired states that were sent again after a loss.
func redispatches(s *fixture.System, w *fixture.Workspace) []events.WorkspaceDesiredStateChanged {
	s.T.Helper()
	var found []events.WorkspaceDesiredStateChanged
	for _, r := range s.Records(topology.FamilyWorkspace) {
		if !bytes.Contains(r.Data, []byte(w.ID)) || r.Header.Get("ce-type") != events.TypeWorkspaceDesiredStateChanged {
			continue
		}
		var e events.WorkspaceDesiredStateChanged
		require.NoError(s.T, json.Unmarshal(r.Data, &e))
		if e.Cause != nil && *e.Cause == events.DesiredStateCauseRedispatch {
			found = append(found, e)
		}
	}
	return found
}
