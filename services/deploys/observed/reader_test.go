package observed

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

// told is an observation with everything that one may have.
func told() events.ObservedWorkload {
	at := time.Date(2026, 3, 4, 5, 6, 7, 890_000_000, time.UTC)
	return events.ObservedWorkload{
		Object: events.ObjectMeta{
			Annotations: map[string]string{"lockstep.dev/commit": "abc", "note": "größer", "empty": ""}, ClusterUID: "c", CreatedAt: &at, DeletedAt: &at, FirstSeen: true,
			Labels: map[string]string{"app": "web"}, Name: "web", Namespace: "shop", ObservedAt: at, ResourceVersion: "1234", ResyncID: "r", UID: "u",
			UpdateType: events.UpdateTypeFull, Verb: events.VerbUpserted, WorkspaceID: "w",
		},
		Kind: events.WorkloadKindDeployment, Generation: 3, ObservedGeneration: 3, SpecReplicas: new(5), HasStatus: true, Paused: true, Unselected: true, Strategy: "RollingUpdate",
		Partition: 1, MinReadySeconds: 2, ProgressDeadlineSeconds: new(600), Revision: 4, TemplateGeneration: 5, SkippedVersions: 6, Replicas: 7, UpdatedReplicas: 8,
		ReadyReplicas: 9, AvailableReplicas: 10, UnavailableReplicas: 11, TerminatingReplicas: new(0), CurrentRevision: "web-1", UpdateRevision: "web-2",
		Template: &events.PodTemplate{
			Annotations: map[string]string{"a": `b\"c"`}, ChangedAt: &at, ChangedBy: "kubectl", Digest: "d", Images: []events.TemplateImage{{Container: "c", Image: "i:1"}},
			RestartedAt: "2026-03-04T05:06:07Z",
		},
		Conditions: []events.Condition{{
			Type: "Progressing", Status: "True", Reason: "ReplicaSetUpdated", Message: `ReplicaSet "web-h1" is progressing.`, LastUpdateTime: &at, LastTransitionTime: &at,
		}, {Type: "Available", Status: "False"}},
	}
}

func TestWhatWatchersWriteIsUnderstood(t *testing.T) {
	t.Parallel()
	r := newReader()
	workload := told()
	raw, err := json.Marshal(workload)
	require.NoError(t, err)
	revision := events.ObservedWorkloadRevision{
		Object: workload.Object, Kind: events.WorkloadRevisionKindReplicaset, Revision: 3, RevisionHistory: []int{1, 2}, TemplateHash: "h", Workload: "web", WorkloadUID: "u",
	}
	rawRevision, err := json.Marshal(revision)
	require.NoError(t, err)
	for range 2 { // the second time it is remembered
		var w events.ObservedWorkload
		require.True(t, r.workload(raw, &w))
		require.Equal(t, workload, w)
		var v events.ObservedWorkloadRevision
		require.True(t, r.revision(rawRevision, &v))
		require.Equal(t, revision, v)
	}
	var first, second events.ObservedWorkload
	require.True(t, r.workload(raw, &first))
	require.True(t, r.workload(raw, &second))
	require.Same(t, first.Template, second.Template)
}

// What observations share is remembered while the next ones are being read: nothing writes it any more. The race detector looks.
func TestWhatObservationsShareIsNotWritten(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(told())
	require.NoError(t, err)
	r := newReader()
	read := func() *events.ObservedWorkload {
		w := &events.ObservedWorkload{}
		require.True(t, r.workload(raw, w))
		bound(w)
		return w
	}
	first, looked := read(), make(chan events.PodTemplate, 1)
	go func() { looked <- *first.Template }()
	require.Same(t, first.Template, read().Template)
	require.Equal(t, *told().Template, <-looked)
}

func TestWhatIsNotUnderstoodIsLeft(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"nothing": ``, "no object": `[]`, "a list": `[{}]`, "half": `{"kind":"deploy`, "no end": `{"kind":"deployment"`, "more": `{}{}`, "a space": `{ }`, "null": `{"template":null}`,
		"a field of tomorrow": `{"tomorrow":1}`, "another case": `{"Kind":"deployment"}`, "a fraction": `{"generation":1.0}`, "an exponent": `{"generation":1e3}`,
		"a leading zero": `{"generation":01}`, "too many digits": `{"generation":1234567890123456789}`, "no digits": `{"generation":-}`, "a text for a number": `{"generation":"1"}`,
		"an escape": `{"kind":"a\u0000"}`, "a line": "{\"kind\":\"a\nb\"}", "no UTF-8": "{\"kind\":\"\xff\"}", "no time": `{"object":{"observed_at":"yesterday"}}`,
		"twice": `{"object":{"name":"a"},"object":{"uid":"b"}}`, "a template twice": `{"template":{"digest":"a"},"template":{"changed_by":"b"}}`,
		"no texts": `{"object":{"labels":{"a":1}}}`, "deep": `{"object":{"labels":{"a":{"b":"c"}}}}`, "no comma": `{"paused":true"has_status":true}`, "a trailing comma": `{"paused":true,}`,
	} {
		require.False(t, newReader().workload([]byte(raw), &events.ObservedWorkload{}), name)
	}
}

// Whatever is understood is what encoding/json makes of it.
func FuzzReader(f *testing.F) {
	raw, err := json.Marshal(told())
	require.NoError(f, err)
	f.Add(raw, raw)
	f.Add([]byte(`{"object":{"labels":{"a":"b","a":"c"}},"conditions":[]}`), []byte(`{"template":{"images":[]},"generation":-0}`))
	f.Add([]byte(`{"object":{"labels":{}},"kind":"k","revision_history":[1,2]}`), []byte(`{"workload":"\\\"","revision":7}`))
	f.Fuzz(func(t *testing.T, one, other []byte) {
		r := newReader()
		for _, raw := range [][]byte{one, other, one} {
			var w, plain events.ObservedWorkload
			if r.workload(raw, &w) {
				require.NoError(t, json.Unmarshal(raw, &plain))
				require.Equal(t, plain, w)
			}
			var v, plainRevision events.ObservedWorkloadRevision
			if r.revision(raw, &v) {
				require.NoError(t, json.Unmarshal(raw, &plainRevision))
				require.Equal(t, plainRevision, v)
			}
		}
	})
}
