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

// deployment is the data of a whole observation, to be spoilt.
func (a *fakeAgent) deployment(
	w workspace.Workspace,
	change func(d *events.ObservedDeployment),
) events.ObservedDeployment {
	d := events.ObservedDeployment{Object: a.meta(w.Namespace, w.Name, 8, false, "", w.ID.String())}
	change(&d)
	return d
}

func TestRejectedMessageGoesToDeadAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	own := func(a *fakeAgent) string { return event.AgentSource("local", a.id, "watcher") }
	for name, test := range map[string]struct {
		send   func(a *fakeAgent, ide workspace.Workspace, place string)
		reason string
	}{
		"no CloudEvent": {func(a *fakeAgent, _ workspace.Workspace, place string) { a.raw(place, natsgo.Header{}, "x") }, "ce-specversion"},
		"no JSON": {func(a *fakeAgent, _ workspace.Workspace, place string) {
			a.publish(place, "observed.deployment.v1", own(a), "1", json.RawMessage(`"x"`))
		}, "data"},
		"invalid UTF-8": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			d := a.deployment(ide, func(d *events.ObservedDeployment) { d.Object.Labels = map[string]string{"a": "BYTES"} })
			data, err := json.Marshal(d)
			require.NoError(a.t, err)
			header := natsgo.Header{}
			for k, v := range map[string]string{
				"specversion": "1.0", "type": events.TypeObservedDeployment, "source": own(a), "id": "1", "datacontenttype": "application/json",
			} {
				header["ce-"+k] = []string{v}
			}
			a.raw(place, header, strings.Replace(string(data), "BYTES", "bad \xff bytes", 1))
		}, "invalid UTF-8"},
		"breaks its schema": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			a.publish(place, "observed.deployment.v1", own(a), "1", a.deployment(ide, func(d *events.ObservedDeployment) { d.Object.Verb = "eaten" }))
		}, "/object/verb"},
		"another agent's source": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			a.publish(place, "observed.deployment.v1", event.AgentSource("local", 8, "watcher"), "1", a.deployment(ide, func(*events.ObservedDeployment) {}))
		}, "only /lockstep/local/agents/7/watcher writes"},
		"the dispatcher's source": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			a.publish(place, "observed.deployment.v1", event.AgentSource("local", 7, "dispatcher"), "1", a.deployment(ide, func(*events.ObservedDeployment) {}))
		}, "only /lockstep/local/agents/7/watcher writes"},
		"another family's type": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			a.publish(place, "applied.terminated.v1", own(a), "1", map[string]any{"workspace_id": ide.ID, "desired_revision": 1, "observed_at": a.now})
		}, "does not belong"},
		"a type of the future": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			a.publish(place, "observed.deployment.v9", own(a), "1", a.deployment(ide, func(*events.ObservedDeployment) {}))
		}, "is not known to this version"},
		"another object's subject": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			a.publish(place, "observed.deployment.v1", own(a), "1", a.deployment(ide, func(d *events.ObservedDeployment) { d.Object.Name = "other" }))
		}, "does not belong"},
		"a tick on an object's subject": {func(a *fakeAgent, _ workspace.Workspace, place string) {
			a.publish(place, "observed.tick.v1", own(a), "1", events.ObservedTick{ClusterUID: a.cluster, ObservedAt: a.now})
		}, `"tick" does not belong`},
		"a version that is none": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			a.publish(place, "observed.deployment.v1", own(a), "1", a.deployment(ide, func(d *events.ObservedDeployment) { d.Object.ResourceVersion = strings.Repeat("9", 50) }))
		}, "is not a resource version"},
		"a version that begins with zero": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			a.publish(place, "observed.deployment.v1", own(a), "1", a.deployment(ide, func(d *events.ObservedDeployment) { d.Object.ResourceVersion = "08" }))
		}, "is not a resource version"},
		"an oversized key": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			a.publish(place, "observed.deployment.v1", own(a), "1", a.deployment(ide, func(d *events.ObservedDeployment) { d.Object.UID = strings.Repeat("u", 10_000) }))
		}, "uid: has 10000 bytes"},
		"a zero byte in a key": {func(a *fakeAgent, ide workspace.Workspace, place string) {
			a.publish(place, "observed.deployment.v1", own(a), "1", a.deployment(ide, func(d *events.ObservedDeployment) { d.Object.UID = "\x00" }))
		}, "uid: contains a NUL byte"},
		"an agent that does not exist":         {func(a *fakeAgent, _ workspace.Workspace, _ string) { a.agent(99).ticks() }, "agent 99 does not exist"},
		"applied of another agent's workspace": {func(a *fakeAgent, ide workspace.Workspace, _ string) { a.agent(8).applies(ide.ID, 1) }, "belongs to agent 7, not to agent 8"},
		"applied of an unknown workspace":      {func(a *fakeAgent, _ workspace.Workspace, _ string) { a.applies(uuid.Must(uuid.NewV7()), 1) }, "does not exist"},
		"applied on another workspace's subject": {func(a *fakeAgent, ide workspace.Workspace, _ string) {
			a.publish(cell.Applied(7, uuid.NewString()), "applied.terminated.v1", event.AgentSource("local", 7, "dispatcher"), "1",
				map[string]any{"workspace_id": ide.ID, "desired_revision": 1, "observed_at": a.now})
		}, "does not belong on subject"},
		"applied of a revision beyond numbers": {func(a *fakeAgent, ide workspace.Workspace, _ string) { a.applies(ide.ID, 1<<53) }, "is above"},
		"a cluster's revision beyond numbers": {func(a *fakeAgent, ide workspace.Workspace, _ string) {
			a.reports("apply_failed", ide.ID, 1, map[string]any{"reason": "Superseded", "message": "m", "attempt": 1, "retry_after_ms": 0, "cluster_revision": 1 << 53})
		}, "is above"},
		"applied breaks its schema": {func(a *fakeAgent, ide workspace.Workspace, _ string) { a.reports("applied", ide.ID, 0, nil) }, "/desired_revision"},
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
			dead := w.dead()
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

func (a *fakeAgent) raw(subject string, header natsgo.Header, data string) {
	a.t.Helper()
	_, err := a.js.PublishMsg(a.t.Context(), &natsgo.Msg{Subject: subject, Header: header, Data: []byte(data)})
	require.NoError(a.t, err)
}

// What a container says at its end is the workspace user's, and has to be taken whatever it is.
func TestTextsThatPostgreSQLRefuses(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	s := running(ide, 8)
	s.template, s.available, s.progress = 1, 0, "ReplicaSetUpdated"
	a.reportsDeployment(s)
	a.replicaSet(ide, 9)
	data, err := json.Marshal(events.ObservedPod{
		Object: a.meta(
			ide.Namespace,
			"ide-1",
			10,
			false,
			"",
			ide.ID.String(),
		),
		Deployment:      "ide",
		Phase:           "Running",
		PodTemplateHash: "h",
		Containers: []events.ContainerState{
			{Name: "workspace", State: "waiting", Reason: "RunContainerError", Message: "MESSAGE", Image: "IMAGE"},
		},
	})
	require.NoError(t, err)
	spoilt := strings.ReplaceAll(string(data), "MESSAGE", `zero \u0000 byte, a backslash \\u0000 and \"quotes\" \u000a`)
	spoilt = strings.Replace(
		spoilt,
		`"phase"`,
		`"endless":1e999999,"deep":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`,"phase"`,
		1,
	)
	header := natsgo.Header{}
	for k, v := range map[string]string{
		"specversion": "1.0", "type": events.TypeObservedPod, "source": event.AgentSource("local", 7, "watcher"), "id": "1", "datacontenttype": "application/json",
	} {
		header["ce-"+k] = []string{v}
	}
	a.raw(cell.Observed(7, "deployment", ide.Namespace, ide.Name), header, spoilt)
	a.reports(
		"apply_failed",
		ide.ID,
		1,
		map[string]any{"reason": "Odd\x00", "message": "zero \x00 byte", "attempt": 1, "retry_after_ms": 1},
	)
	w.ingestAll()
	a.applies(ide.ID, 1)
	w.ingestAll()
	require.Empty(t, w.dead())
	got := w.get(ide.ID)
	require.Equal(t, actualstate.Failed, got.ActualState)
	require.Equal(t, `container workspace cannot be started: zero byte, a backslash \u0000 and "quotes"`, got.Message)
	told := w.published("workspace.4." + ide.ID.String() + ".state_changed")
	require.Equal(t, "zero  byte", told[len(told)-2]["message"])
}
