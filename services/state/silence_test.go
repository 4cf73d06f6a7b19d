package state_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// report publishes an event of an agent's service on a subject of the agent.
func report(conn *nats.Conn, agent int64, service, subject, kind string, data any) error {
	now := time.Now()
	made, err := event.New(event.Attributes{
		Type: kind, Source: event.AgentSource("local", agent, service), Subject: subject,
		ID: strconv.FormatInt(now.UnixNano(), 10), Time: now,
	}, data)
	if err != nil {
		return err
	}
	m, err := event.Encode(made, subject)
	if err != nil {
		return err
	}
	return conn.PublishMsg(m)
}

// tick publishes a tick of an agent's watcher.
func tick(conn *nats.Conn, agent int64) error {
	return report(conn, agent, "watcher", topology.Cell("local").ObservedTick(agent), events.TypeObservedTick,
		events.ObservedTick{ClusterUID: "cluster-" + strconv.FormatInt(agent, 10), ObservedAt: time.Now()})
}

// ticksUntil publishes ticks of an agent until the channel is closed.
func ticksUntil(t *testing.T, registered *statev1.RegisterAgentResponse, done <-chan struct{}) {
	t.Helper()
	conn, err := dialAgent(t, registered)
	require.NoError(t, err)
	ended := make(chan struct{})
	t.Cleanup(func() { <-ended })
	ticker := time.NewTicker(50 * time.Millisecond)
	go func() {
		defer close(ended)
		defer ticker.Stop()
		for {
			if err := tick(conn, registered.GetAgent().GetId()); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-ticker.C:
			case <-done:
				return
			}
		}
	}()
}

func TestSilentAgentIsPublishedOnceAndItsWorkspacesAreStaleUntilItReturns(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.cfg.Agents.SilentAfter = 2 * time.Second
	b.start(t) // two replicas
	b.start(t)
	admin := b.as(t, b.admin)
	project, quiet := admin.project()
	lively, never := admin.agent(project, "lively"), admin.agent(project, "never")
	cell, quietID := topology.Cell("local"), quiet.GetAgent().GetId()
	call(t, admin.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "shop", ProjectId: project, AgentId: quietID})
	agents := func() map[int64]*statev1.Agent {
		found := map[int64]*statev1.Agent{}
		for _, a := range call(t, admin.agents.ListAgents, &statev1.ListAgentsRequest{}).GetAgents() {
			found[a.GetId()] = a
		}
		return found
	}
	workspace := func() *statev1.Workspace {
		return call(t, admin.workspaces.ListWorkspaces, &statev1.ListWorkspacesRequest{}).GetWorkspaces()[0]
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	watch, err := admin.workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{}))
	require.NoError(t, err)
	defer watch.Close()
	watched := func(stale bool) {
		t.Helper()
		for {
			require.True(t, watch.Receive(), "no message with stale %t: %v", stale, watch.Err())
			if (watch.Msg().GetWorkspace().GetStaleSince() != nil) == stale {
				return
			}
		}
	}
	watched(false)
	published, err := b.administrator(t).SubscribeSync(cell.All(topology.FamilyAgent))
	require.NoError(t, err)
	require.NoError(t, b.administrator(t).Flush())
	next := func() (*nats.Msg, string) {
		m, err := published.NextMsg(timeout)
		require.NoError(t, err)
		return m, m.Header.Get("ce-type")
	}

	done := make(chan struct{})
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			close(done)
		}
	}
	defer stop()
	ticksUntil(t, lively, done)
	conn, err := dialAgent(t, quiet)
	require.NoError(t, err)
	require.NoError(t, tick(conn, quietID))

	m, kind := next()
	require.Equal(t, events.TypeAgentSilent, kind)
	silent, err := events.Decode[events.AgentSilent](m.Data)
	require.NoError(t, err)
	require.EqualValues(t, quietID, silent.AgentID)
	found := agents()
	require.Equal(t, found[quietID].GetLastSeenAt().AsTime(), found[quietID].GetSilentSince().AsTime())
	require.WithinDuration(t, silent.SilentSince, found[quietID].GetSilentSince().AsTime(), time.Millisecond)
	require.Equal(t, found[quietID].GetSilentSince().AsTime(), workspace().GetStaleSince().AsTime())
	watched(true)
	require.Nil(t, found[lively.GetAgent().GetId()].GetSilentSince())
	require.Nil(t, found[never.GetAgent().GetId()].GetSilentSince())

	ticksUntil(t, quiet, done)
	m, kind = next()
	require.Equal(t, events.TypeAgentReturned, kind)
	returned, err := events.Decode[events.AgentReturned](m.Data)
	require.NoError(t, err)
	require.EqualValues(t, quietID, returned.AgentID)
	require.Equal(t, silent.SilentSince, returned.SilentSince)
	require.Greater(t, returned.ReturnedAt, returned.SilentSince)
	require.Nil(t, agents()[quietID].GetSilentSince())
	require.Nil(t, workspace().GetStaleSince())
	watched(false)

	// The next event is the silence of the other one: nothing was published twice.
	stop()
	for range 2 {
		m, kind = next()
		require.Equal(t, events.TypeAgentSilent, kind)
		again, err := events.Decode[events.AgentSilent](m.Data)
		require.NoError(t, err)
		require.NotEqual(t, silent.SilentSince, again.SilentSince)
	}
	watched(true)

	js, err := jetstream.New(b.administrator(t))
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), topology.StreamAgents)
	require.NoError(t, err)
	require.EqualValues(t, 4, stream.CachedInfo().State.Msgs)

	require.NoError(t, tick(conn, quietID))
	watched(false)
	call(t, admin.agents.RevokeAgent, &statev1.RevokeAgentRequest{Id: quietID})
	watched(true)
	require.NotNil(t, workspace().GetStaleSince(), "nobody reports the workspaces of a revoked agent")
}

func TestWorkspaceExplainsThatItsAgentHasNeverConnected(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	admin := b.as(t, b.admin)
	project, agent := admin.project()
	created := call(t, admin.workspaces.CreateWorkspace,
		&statev1.CreateWorkspaceRequest{Name: "shop", ProjectId: project}).GetWorkspace()
	require.Equal(t, "WatcherNeverConnected", created.GetReason())
	require.Equal(t, "the watcher of its agent has never connected", created.GetMessage())
	require.Nil(t, created.GetStaleSince())
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	watch, err := admin.workspaces.WatchWorkspaces(ctx, connect.NewRequest(&statev1.WatchWorkspacesRequest{}))
	require.NoError(t, err)
	defer watch.Close()
	require.True(t, watch.Receive(), "%v", watch.Err())
	require.Equal(t, created.GetReason(), watch.Msg().GetWorkspace().GetReason())

	conn, err := dialAgent(t, agent)
	require.NoError(t, err)
	require.NoError(t, tick(conn, agent.GetAgent().GetId()))
	require.True(t, watch.Receive(), "%v", watch.Err())
	require.Empty(t, watch.Msg().GetWorkspace().GetReason())
	require.Empty(t, watch.Msg().GetWorkspace().GetMessage())
}
