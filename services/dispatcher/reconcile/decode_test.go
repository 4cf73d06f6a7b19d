package reconcile_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/services/dispatcher/reconcile"
)

const (
	cell = topology.Cell("local")
	id   = "0198c2a4-0000-7000-8000-000000000001"
)

func TestDesiredStateIsAcceptedRejectedOrDropped(t *testing.T) {
	t.Parallel()
	configMap := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{
		"name": "files", "namespace": "ws-a",
		"labels": map[string]any{desired.LabelAgent: "7", desired.LabelWorkspace: id},
	}}
	pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p", "namespace": "ws-a"}}
	policy := desired.Policy{
		Agent: 7, NamespacePrefix: "ws-", PodSecurity: desired.PodSecurityRestricted, Kinds: desired.KindNames(),
	}
	for name, c := range map[string]struct {
		revision int
		target   events.DesiredTarget
		manifest map[string]any
		reason   failure.Reason // empty if the desired state is accepted
		dropped  bool
	}{
		"allowed":          {3, events.DesiredTargetRunning, configMap, "", false},
		"terminated":       {3, events.DesiredTargetTerminated, configMap, "", false},
		"kind not allowed": {3, events.DesiredTargetRunning, pod, failure.NotAllowed, false},
		"malformed":        {3, events.DesiredTargetRunning, map[string]any{"no": "metadata"}, failure.Malformed, false},
		"no revision":      {0, events.DesiredTargetRunning, configMap, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			message := encode(t, events.DesiredWorkspace{
				WorkspaceID: id, Name: "a", Namespace: "ws-a", DesiredRevision: c.revision, Target: c.target,
				Manifests: []map[string]any{c.manifest},
			})
			w, rejection, err := reconcile.DecodeAndCheck(cell, policy, message.Subject, message.Header, message.Data)
			if c.dropped {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, id, w.ID)
			require.EqualValues(t, c.revision, w.Revision)
			if c.reason == "" {
				require.Nil(t, rejection)
				require.Len(t, w.Objects, 1)
				return
			}
			require.Equal(t, c.reason, rejection.Reason)
		})
	}
	_, _, err := reconcile.DecodeAndCheck(cell, policy, cell.Desired(8, id), nats.Header{}, nil)
	require.ErrorIs(t, err, desired.ErrUnknownWorkspace, "a subject of another agent")
}

func encode(t *testing.T, w events.DesiredWorkspace) *nats.Msg {
	t.Helper()
	e, err := event.New(event.Attributes{
		Type: events.TypeDesiredWorkspace, Source: event.ServiceSource(string(cell), "state"), Subject: id, ID: "1",
		Time: time.Unix(1, 0),
	}, w)
	require.NoError(t, err)
	message, err := event.Encode(e, cell.Desired(7, id))
	require.NoError(t, err)
	return message
}
