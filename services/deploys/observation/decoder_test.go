package observation_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/observation"
	"lockstep.internal/services/deploys/rollout"
)

const cell = topology.Cell("local")

func observedAt() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 890_000_000, time.UTC) }

// workload returns an observation with every field set.
func workload() events.ObservedWorkload {
	at := observedAt()
	return events.ObservedWorkload{
		Object: events.ObjectMeta{
			Annotations: map[string]string{"lockstep.dev/commit": "abc", "note": "größer", "empty": ""}, ClusterUID: "c",
			CreatedAt: &at, DeletedAt: &at, FirstSeen: true, Labels: map[string]string{"app": "web"}, Name: "web",
			Namespace: "shop", ObservedAt: at, ResourceVersion: "1234", ResyncID: "r", UID: "u",
			UpdateType: events.UpdateTypeFull, Verb: events.VerbUpserted, WorkspaceID: "w",
		},
		Kind: events.WorkloadKindDeployment, Generation: 3, ObservedGeneration: 3, SpecReplicas: new(5), HasStatus: true,
		Paused: true, Unselected: true, Strategy: "RollingUpdate", Partition: 1, MinReadySeconds: 2,
		ProgressDeadlineSeconds: new(600), Revision: 4, TemplateGeneration: 5, SkippedVersions: 6, Replicas: 7,
		UpdatedReplicas: 8, ReadyReplicas: 9, AvailableReplicas: 10, UnavailableReplicas: 11, TerminatingReplicas: new(0),
		CurrentRevision: "web-1", UpdateRevision: "web-2",
		Template: &events.PodTemplate{
			Annotations: map[string]string{"a": `b\"c"`}, ChangedAt: &at, ChangedBy: "kubectl", Digest: "d",
			Images: []events.TemplateImage{{Container: "c", Image: "i:1"}}, RestartedAt: "2026-03-04T05:06:07Z",
		},
		Conditions: []events.Condition{
			{Type: "Progressing", Status: "True", Reason: "R", Message: `"x" \u0000`, LastUpdateTime: &at},
			{Type: "Available", Status: "False"},
		},
	}
}

func decode(t *testing.T, subject string, data any) (observation.Observation, error) {
	t.Helper()
	e, err := event.New(event.Attributes{
		Type: events.TypeObservedWorkload, Source: event.AgentSource(string(cell), 7, "watcher"), Subject: "s", ID: "1",
		Time: observedAt(),
	}, data)
	require.NoError(t, err)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	e.SetExtension(event.TraceParent, parent)
	msg, err := event.Encode(e, subject)
	require.NoError(t, err)
	o, err := observation.NewDecoder(cell).Decode(msg.Subject, msg.Header, msg.Data)
	if err == nil {
		require.Equal(t, parent, o.TraceParent)
	}
	return o, err
}

func TestWorkloadRoundTrip(t *testing.T) {
	t.Parallel()
	want := workload()
	o, err := decode(t, cell.ObservedWorkload(7, "deployment", "shop", "web"), want)
	require.NoError(t, err)
	require.Equal(t, &want, o.Workload)
	require.EqualValues(t, 7, o.AgentID)
	require.Equal(t, observedAt(), o.ObservedAt)
	require.Equal(t, rollout.Key{ClusterUID: "c", Namespace: "shop", Kind: "deployment", Name: "web"}, o.Key)
	require.Equal(t, observation.NewID("c", "shop", "deployment", "web"), o.ID)
	require.Equal(t, "deployment/u", o.MemberKey())
}

func TestMessageOnSubjectOfAnotherObjectIsRejected(t *testing.T) {
	t.Parallel()
	_, err := decode(t, cell.ObservedWorkload(7, "deployment", "shop", "other"), workload())
	require.ErrorContains(t, err, "not allowed on subject")
	_, err = decode(t, cell.ObservedWorkload(8, "deployment", "shop", "web"), workload())
	require.ErrorContains(t, err, "only /lockstep/local/agents/8/watcher publishes on")
}

func TestZeroByteIsRejected(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(workload())
	require.NoError(t, err)
	for name, zero := range map[string]string{"alone": `\u0000`, "after a backslash": `\\\u0000`} {
		data := strings.Replace(string(raw), "kubectl", zero, 1)
		_, err = decode(t, cell.ObservedWorkload(7, "deployment", "shop", "web"), json.RawMessage(data))
		require.ErrorContains(t, err, "zero byte", name)
	}
}

func TestSubjectsOfWorkspacesAreIrrelevant(t *testing.T) {
	t.Parallel()
	d := observation.NewDecoder(cell)
	for _, subject := range []string{
		"lockstep.local.observed.1.deployment.ns.name", "lockstep.other.observed.1.tick",
		"lockstep.local.workspace.1.w.created", "x",
	} {
		require.False(t, d.Relevant(subject), subject)
		o, err := d.Decode(subject, nil, []byte("not an event"))
		require.NoError(t, err)
		require.False(t, o.Relevant())
	}
	_, err := d.Decode(cell.ObservedTick(1), nil, []byte("not an event"))
	require.Error(t, err)
}
