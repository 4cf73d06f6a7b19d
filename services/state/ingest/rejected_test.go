package ingest_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

func TestRejectedMessageGoesToDeadAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		send   send
		reason string
	}{
		"not a CloudEvent": {func(a *fakeAgent, _ workspace.Workspace, subject string) {
			a.raw(subject, natsgo.Header{}, "x")
		}, "ce-specversion"},
		"an agent that does not exist": {func(a *fakeAgent, _ workspace.Workspace, _ string) {
			a.agent(99).ticks()
		}, "agent 99 does not exist"},
		"applied of another agent's workspace": {func(a *fakeAgent, ide workspace.Workspace, _ string) {
			a.agent(8).applies(ide.ID, 1)
		}, "belongs to agent 7, not to agent 8"},
		"applied of an unknown workspace": {func(a *fakeAgent, _ workspace.Workspace, _ string) {
			a.applies(uuid.Must(uuid.NewV7()), 1)
		}, "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a, ide, before, after := w.agent(7), w.workspace("ide"), w.workspace("before"), w.workspace("after")
			a.reportsDeployment(running(before, 7))
			a.applies(before.ID, 1)
			test.send(a, ide, cell.Observed(7, "deployment", ide.Namespace, ide.Name))
			a.reportsDeployment(running(after, 9))
			a.applies(after.ID, 1)
			w.ingestAll()
			dead := w.deadLetterReasons()
			require.Len(t, dead, 1)
			require.Contains(t, dead[0], test.reason)
			for _, neighbour := range []workspace.Workspace{before, after} {
				require.Equal(t, actualstate.Running, w.get(neighbour.ID).ActualState)
				require.EqualValues(t, 1, w.get(neighbour.ID).AppliedRevision)
			}
			untouched := w.get(ide.ID)
			require.Equal(t, ide.ActualState, untouched.ActualState)
			require.Zero(t, untouched.AppliedRevision)
		})
	}
}

// Container messages are user content. Every text must be storable.
func TestTextsThatPostgreSQLRejectsAreSanitized(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	s := running(ide, 8)
	s.template, s.available, s.progress = 1, 0, "ReplicaSetUpdated"
	a.reportsDeployment(s)
	a.replicaSet(ide, 9)
	data, err := json.Marshal(events.ObservedPod{
		Object:          a.meta(ide.Namespace, "ide-1", 10, false, "", ide.ID.String()),
		Deployment:      "ide",
		Phase:           "Running",
		PodTemplateHash: "h",
		Containers: []events.ContainerState{
			{Name: "workspace", State: "waiting", Reason: "RunContainerError", Message: "MESSAGE", Image: "IMAGE"},
		},
	})
	require.NoError(t, err)
	invalid := strings.ReplaceAll(string(data), "MESSAGE", `zero \u0000 byte, a backslash \\u0000 and \"quotes\" \u000a`)
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	invalid = strings.Replace(invalid, `"phase"`, `"endless":1e999999,"deep":`+deep+`,"phase"`, 1)
	header := eventHeader(events.TypeObservedPod, event.AgentSource("local", 7, "watcher"))
	a.raw(cell.Observed(7, "deployment", ide.Namespace, ide.Name), header, invalid)
	a.reports("apply_failed", ide.ID, 1, map[string]any{
		"reason": "Odd\x00", "message": "zero \x00 byte", "attempt": 1, "retry_after_ms": 1,
	})
	w.ingestAll()
	a.applies(ide.ID, 1)
	w.ingestAll()
	require.Empty(t, w.deadLetterReasons())
	got := w.get(ide.ID)
	require.Equal(t, actualstate.Failed, got.ActualState)
	require.Equal(t, `container workspace cannot be started: zero byte, a backslash \u0000 and "quotes"`, got.Message)
	published := w.published("workspace.4." + ide.ID.String() + ".state_changed")
	require.Equal(t, "zero  byte", published[len(published)-2]["message"])
}
