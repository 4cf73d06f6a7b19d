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
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/workspace"
)

// deployment returns a valid event payload that tests modify.
func (a *fakeAgent) deployment(
	w workspace.Workspace,
	change func(d *events.ObservedWorkload),
) events.ObservedWorkload {
	d := events.ObservedWorkload{
		Object: a.meta(w.Namespace, w.Name, 8, false, "", w.ID.String()), Kind: events.WorkloadKindDeployment,
	}
	change(&d)
	return d
}

// send publishes a message. subject is the one of the workspace's Deployment.
type send func(a *fakeAgent, ide workspace.Workspace, subject string)

// sendDeployment sends a Deployment of the workspace after change.
func sendDeployment(eventType, source string, change func(d *events.ObservedWorkload)) send {
	return func(a *fakeAgent, ide workspace.Workspace, subject string) {
		a.publish(subject, eventType, source, "1", a.deployment(ide, change))
	}
}

func TestMalformedMessageIsNotDecoded(t *testing.T) {
	t.Parallel()
	const deployment = "observed.workload.v1"
	watcher, dispatcher := event.AgentSource("local", 7, "watcher"), event.AgentSource("local", 7, "dispatcher")
	unchanged := func(*events.ObservedWorkload) {}
	for name, test := range map[string]struct {
		send   send
		reason string
	}{
		"not a CloudEvent": {func(a *fakeAgent, _ workspace.Workspace, subject string) {
			a.raw(subject, natsgo.Header{}, "x")
		}, "ce-specversion"},
		"no JSON": {func(a *fakeAgent, _ workspace.Workspace, subject string) {
			a.publish(subject, deployment, watcher, "1", json.RawMessage(`"x"`))
		}, "data"},
		"invalid UTF-8": {func(a *fakeAgent, ide workspace.Workspace, subject string) {
			d := a.deployment(ide, func(d *events.ObservedWorkload) { d.Object.Labels = map[string]string{"a": "BYTES"} })
			data, err := json.Marshal(d)
			require.NoError(a.t, err)
			a.raw(subject, eventHeader(events.TypeObservedWorkload, watcher),
				strings.Replace(string(data), "BYTES", "bad \xff bytes", 1))
		}, "invalid UTF-8"},
		"breaks its schema": {
			sendDeployment(deployment, watcher, func(d *events.ObservedWorkload) { d.Object.Verb = "invalid" }),
			"/object/verb",
		},
		"another agent's source": {
			sendDeployment(deployment, event.AgentSource("local", 8, "watcher"), unchanged),
			"expected /lockstep/local/agents/7/watcher",
		},
		"the dispatcher's source": {
			sendDeployment(deployment, dispatcher, unchanged),
			"expected /lockstep/local/agents/7/watcher",
		},
		"another family's type": {func(a *fakeAgent, ide workspace.Workspace, subject string) {
			a.publish(subject, "applied.terminated.v1", watcher, "1",
				map[string]any{"workspace_id": ide.ID, "desired_revision": 1, "observed_at": a.now})
		}, "does not belong"},
		"an unknown version of a type": {
			sendDeployment("observed.workload.v9", watcher, unchanged),
			"unknown to this version",
		},
		"another object's subject": {
			sendDeployment(deployment, watcher, func(d *events.ObservedWorkload) { d.Object.Name = "other" }),
			"does not belong",
		},
		"a tick on an object's subject": {func(a *fakeAgent, _ workspace.Workspace, subject string) {
			tick := events.ObservedTick{ClusterUID: a.cluster, ObservedAt: a.now}
			a.publish(subject, "observed.tick.v1", watcher, "1", tick)
		}, `"tick" does not belong`},
		"an invalid resource version": {
			sendDeployment(deployment, watcher, func(d *events.ObservedWorkload) {
				d.Object.ResourceVersion = strings.Repeat("9", 50)
			}),
			"is not a resource version",
		},
		"a version that begins with zero": {
			sendDeployment(deployment, watcher, func(d *events.ObservedWorkload) { d.Object.ResourceVersion = "08" }),
			"is not a resource version",
		},
		"an oversized key": {
			sendDeployment(deployment, watcher, func(d *events.ObservedWorkload) {
				d.Object.UID = strings.Repeat("u", 10_000)
			}),
			"uid: has 10000 bytes",
		},
		"a zero byte in a key": {
			sendDeployment(deployment, watcher, func(d *events.ObservedWorkload) { d.Object.UID = "\x00" }),
			"uid: contains a NUL byte",
		},
		"applied on another workspace's subject": {func(a *fakeAgent, ide workspace.Workspace, _ string) {
			a.publish(cell.Applied(7, uuid.NewString()), "applied.terminated.v1", dispatcher, "1",
				map[string]any{"workspace_id": ide.ID, "desired_revision": 1, "observed_at": a.now})
		}, "does not belong on subject"},
		"applied with a revision above MaxRevision": {func(a *fakeAgent, ide workspace.Workspace, _ string) {
			a.applies(ide.ID, 1<<53)
		}, "is above"},
		"a cluster revision above MaxRevision": {func(a *fakeAgent, ide workspace.Workspace, _ string) {
			a.reports("apply_failed", ide.ID, 1, map[string]any{
				"reason": "Superseded", "message": "m", "attempt": 1, "retry_after_ms": 0, "cluster_revision": 1 << 53,
			})
		}, "is above"},
		"applied breaks its schema": {func(a *fakeAgent, ide workspace.Workspace, _ string) {
			a.reports("applied", ide.ID, 0, nil)
		}, "/desired_revision"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ide, _ := newWorkspace(t, "ide")
			var sent *natsgo.Msg
			w := &fixture{t: t, send: func(m *natsgo.Msg) { sent = m }}
			test.send(w.agent(7), ide, cell.Observed(7, "deployment", ide.Namespace, ide.Name))
			require.ErrorContains(t, decodeError(sent), test.reason)
		})
	}
}

// decodeError returns the error of decoding a message of OBSERVED or APPLIED.
func decodeError(m *natsgo.Msg) error {
	var err error
	if strings.HasPrefix(m.Subject, "lockstep.local.applied.") {
		_, err = ingest.DecodeApplied(cell, m.Subject, m.Header, m.Data)
	} else {
		_, err = ingest.DecodeObserved(cell, m.Subject, m.Header, m.Data)
	}
	return err
}

func eventHeader(eventType, source string) natsgo.Header {
	return natsgo.Header{
		"ce-specversion": {"1.0"}, "ce-type": {eventType}, "ce-source": {source}, "ce-id": {"1"},
		"ce-datacontenttype": {"application/json"},
	}
}

// raw publishes a message that need not be an event.
func (a *fakeAgent) raw(subject string, header natsgo.Header, data string) {
	a.t.Helper()
	a.send(&natsgo.Msg{Subject: subject, Header: header, Data: []byte(data)})
}
