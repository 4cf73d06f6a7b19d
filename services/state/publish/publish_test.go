package publish_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/workspace"
)

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

func encoder() publish.Encoder { return publish.Encoder{Cell: "local"} }

func configured() publish.Configurations {
	return publish.Configurations{7: agent.DefaultConfiguration()}
}

// created returns the update of a new workspace of agent 7 in project 4.
func created(t *testing.T) workspace.Update {
	t.Helper()
	w, published, err := workspace.New(workspace.Creation{
		Name: "ide", ProjectID: 4, AgentID: 7, UserID: 9, Template: "default",
		Spec: workspace.Spec{Image: "ide:9"}, Now: start(),
	})
	require.NoError(t, err)
	return workspace.Update{After: w, Events: published}
}

func encode(t *testing.T, u workspace.Update) []*nats.Msg {
	t.Helper()
	messages, err := encoder().Workspaces(t.Context(), configured(), u)
	require.NoError(t, err)
	return messages
}

func subjects(messages []*nats.Msg) []string {
	out := make([]string, len(messages))
	for i, m := range messages {
		out[i] = m.Subject
	}
	return out
}

func data(t *testing.T, m *nats.Msg) map[string]any {
	t.Helper()
	var out map[string]any
	require.NoError(t, json.Unmarshal(m.Data, &out))
	return out
}

func header(m *nats.Msg, name string) []string { return m.Header[name] }

func TestNewWorkspaceIsPublishedOnDesiredAndWorkspaces(t *testing.T) {
	t.Parallel()
	u := created(t)
	id := u.After.ID.String()
	messages := encode(t, u)
	require.Equal(t, []string{
		"lockstep.local.desired.7." + id,
		"lockstep.local.desired_log.7." + id,
		"lockstep.local.access.workspace." + id,
		"lockstep.local.workspace.4." + id + ".created",
	}, subjects(messages))
	require.Equal(t, []string{id + "/dispatch/1"}, header(messages[0], "ce-id"))
	require.Equal(t, "running", data(t, messages[0])["target"])
	require.Equal(t, messages[0].Data, messages[1].Data, "the same message on DESIRED_LOG")
	require.Equal(t, messages[0].Header, messages[1].Header)
	require.Equal(t, []string{"/lockstep/local/state"}, header(messages[3], "ce-source"))
}

func TestUpdateWithoutEventsPublishesNothing(t *testing.T) {
	t.Parallel()
	before := created(t).After
	after := before
	after.AppliedRevision = 1
	require.Empty(t, encode(t, workspace.Update{Before: before, After: before}))
	require.Empty(t, encode(t, workspace.Update{Before: before, After: after}))
}

func TestChangedActualStateIsPublished(t *testing.T) {
	t.Parallel()
	before, _ := created(t).After.ApplyFailed(actualstate.ApplyError{Revision: 1, Reason: "R", Message: "M"}, start())
	after, published := before.Observe(workspace.Observation{At: start()})
	messages := encode(t, workspace.Update{Before: before, After: after, Events: published})
	id := after.ID.String()
	require.Equal(t,
		[]string{"lockstep.local.access.workspace." + id, "lockstep.local.workspace.4." + id + ".state_changed"},
		subjects(messages))
	require.Equal(t, string(after.ActualState), data(t, messages[0])["actual_state"])
	require.Equal(t, []string{id + "/actual/1"}, header(messages[1], "ce-id"))
}

func TestChangedDesiredStateIsPublishedOnBothStreams(t *testing.T) {
	t.Parallel()
	before := created(t).After
	after, published, err := before.SetDesired(workspace.DesiredStopped, 10, start())
	require.NoError(t, err)
	messages := encode(t, workspace.Update{Before: before, After: after, Events: published})
	require.Len(t, messages, 4)
	require.Equal(t, "stopped", data(t, messages[0])["target"])
	require.Equal(t, "stopped", data(t, messages[1])["target"])
	require.Equal(t, "stopped", data(t, messages[3])["to"])
	require.EqualValues(t, 10, data(t, messages[3])["user_id"])
}

func TestDesiredMessageOfATerminatedWorkspaceExpires(t *testing.T) {
	t.Parallel()
	before := created(t).After
	after := before
	after.ActualState = actualstate.Terminated
	messages := encode(t, workspace.Update{Before: before, After: after})
	id := after.ID.String()
	require.Equal(t,
		[]string{"lockstep.local.desired.7." + id, "lockstep.local.access.workspace." + id}, subjects(messages))
	require.Equal(t, []string{"1h0m0s"}, header(messages[0], "Nats-TTL"))
	require.Equal(t, []string{"1h0m0s"}, header(messages[1], "Nats-TTL"))
	require.Equal(t, true, data(t, messages[1])["deleted"])
}

func TestGatewayLearnsWhoMayEnterAndWhere(t *testing.T) {
	t.Parallel()
	before := created(t).After
	after := before
	after.ActualState = actualstate.Running
	after.Spec.Ports = []workspace.Port{{Name: "http", Number: 8080}}
	messages := encode(t, workspace.Update{Before: before, After: after})
	require.Equal(t, []string{"lockstep.local.access.workspace." + after.ID.String()}, subjects(messages))
	require.Empty(t, header(messages[0], "Nats-TTL"))
	require.NoError(t, events.Validate(events.TypeAccessWorkspace, messages[0].Data))
	require.Equal(t, map[string]any{
		"workspace_id": after.ID.String(), "name": "ide", "namespace": "ws-7-ide", "project_id": 4.0, "agent_id": 7.0,
		"user_id": 9.0, "actual_state": "running", "ports": []any{map[string]any{"name": "http", "number": 8080.0}},
	}, data(t, messages[0]))
	require.Empty(t, encode(t, workspace.Update{Before: after, After: after}), "nothing has changed for the gateway")
}

func TestRepublishedDesiredStateKeepsItsRevision(t *testing.T) {
	t.Parallel()
	w, _, err := created(t).After.SetDesired(workspace.DesiredStopped, 10, start())
	require.NoError(t, err)
	again, err := encoder().Desired(t.Context(), configured(), w)
	require.NoError(t, err)
	require.EqualValues(t, 2, data(t, again)["desired_revision"])
	require.Equal(t, []string{w.ID.String() + "/dispatch/2"}, header(again, "ce-id"))
	require.Empty(t, header(again, "Nats-TTL"))
}
