package ingest_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/ingest"
)

// usesOldType alternates: every second Deployment or ReplicaSet is published with the type of version 0.1.
func (a *fakeAgent) usesOldType() bool { return a.events%2 == 0 }

func (a *fakeAgent) observeDeployment(d events.ObservedWorkload) {
	a.t.Helper()
	subject := cell.Observed(a.id, "deployment", d.Object.Namespace, d.Object.Name)
	if !a.usesOldType() {
		d.Strategy, d.MinReadySeconds, d.SkippedVersions = "RollingUpdate", 5, a.events
		a.observe(subject, "observed.workload.v1", d)
		return
	}
	data, err := json.Marshal(d)
	require.NoError(a.t, err)
	var old events.ObservedDeployment
	require.NoError(a.t, json.Unmarshal(data, &old))
	a.observe(subject, "observed.deployment.v1", old)
}

func TestBothTypesOfAnEventAreStoredAlike(t *testing.T) {
	t.Parallel()
	const meta = `{"cluster_uid":"c","namespace":"n","name":"%","uid":"u","resource_version":"1","verb":"upserted",` +
		`"update_type":"partial","observed_at":"2026-01-02T03:04:05Z"}`
	deployment, replicaSet := strings.Replace(meta, "%", "d", 1), strings.Replace(meta, "%", "d-h", 1)
	for name, tc := range map[string]struct{ old, oldData, now, nowData, stored string }{
		"a Deployment without a status": {
			old: "observed.deployment.v1", oldData: `{"object":` + deployment + `}`,
			now: "observed.workload.v1", nowData: `{"object":` + deployment + `,"kind":"deployment"}`,
			stored: `{"kind":"deployment","object":` + deployment + `}`,
		},
		"a Deployment with every field": {
			old: "observed.deployment.v1",
			oldData: `{"object":` + deployment + `,"generation":1,"observed_generation":2,"spec_replicas":0,"paused":true,` +
				`"has_status":true,"replicas":3,"updated_replicas":4,"ready_replicas":5,"available_replicas":6,` +
				`"unavailable_replicas":7,"terminating_replicas":0,"revision":8,` +
				`"conditions":[{"type":"Available","status":"True"}]}`,
			now: "observed.workload.v1",
			nowData: `{"object":` + deployment + `,"kind":"deployment","generation":1,"observed_generation":2,` +
				`"spec_replicas":0,"paused":true,` +
				`"has_status":true,"replicas":3,"updated_replicas":4,"ready_replicas":5,"available_replicas":6,` +
				`"unavailable_replicas":7,"terminating_replicas":0,"revision":8,` +
				`"conditions":[{"type":"Available","status":"True"}],` +
				`"skipped_versions":1,"unselected":true,"strategy":"Recreate","partition":2,"progress_deadline_seconds":3,` +
				`"min_ready_seconds":4,"template":{"digest":"x"},"template_generation":5,"current_revision":"a",` +
				`"update_revision":"b"}`,
			stored: `{"kind":"deployment","object":` + deployment + `,"generation":1,"observed_generation":2,` +
				`"spec_replicas":0,"paused":true,` +
				`"has_status":true,"replicas":3,"updated_replicas":4,"ready_replicas":5,"available_replicas":6,` +
				`"unavailable_replicas":7,"terminating_replicas":0,"revision":8,` +
				`"conditions":[{"type":"Available","status":"True"}]}`,
		},
		"a ReplicaSet": {
			old:     "observed.replicaset.v1",
			oldData: `{"object":` + replicaSet + `,"deployment":"d","revision":2,"pod_template_hash":"h"}`,
			now:     "observed.workload_revision.v1",
			nowData: `{"object":` + replicaSet + `,"kind":"replicaset","workload":"d","workload_uid":"w","revision":2,` +
				`"revision_history":[1],"template_hash":"h"}`,
			stored: `{"object":` + replicaSet + `,"kind":"replicaset","workload":"d","workload_uid":"","revision":2,` +
				`"template_hash":"h"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old, now := decode(t, tc.old, tc.oldData, "n", "d"), decode(t, tc.now, tc.nowData, "n", "d")
			require.JSONEq(t, tc.stored, now.Data)
			require.Equal(t, now, old)
		})
	}
}

// decode decodes a message of agent 7 on the subject of a Deployment.
func decode(t *testing.T, kind, data, namespace, deployment string) ingest.Object {
	t.Helper()
	observed, err := tryDecode(t, kind, data, cell.Observed(7, "deployment", namespace, deployment))
	require.NoError(t, err)
	return *observed.Object
}

func tryDecode(t *testing.T, kind, data, subject string) (ingest.Observed, error) {
	t.Helper()
	e, err := event.New(event.Attributes{
		Type: event.TypePrefix + kind, Source: event.AgentSource("local", 7, "watcher"), Subject: "s", ID: "1", Time: start(),
	}, json.RawMessage(data))
	require.NoError(t, err)
	m, err := event.Encode(e, subject)
	require.NoError(t, err)
	observed, err := ingest.DecodeObserved(cell, subject, m.Header, m.Data)
	if err != nil {
		return ingest.Observed{}, err
	}
	require.Len(t, observed, 1)
	return observed[0], nil
}

func TestGoldenEventsOfBothTypesGiveTheSameState(t *testing.T) {
	t.Parallel()
	releases, err := filepath.Glob("../../../schemas/released/golden/*")
	require.NoError(t, err)
	require.NotEmpty(t, releases)
	for _, release := range releases {
		t.Run(filepath.Base(release), func(t *testing.T) {
			t.Parallel()
			old := goldenResult(t, release, func(kind string, _ map[string]any) string { return kind })
			require.Equal(t, actualstate.Failed, old.State, "the pod of the current ReplicaSet cannot start")
			require.Equal(t, "ErrImagePull", old.Reason)
			require.Equal(t, old, goldenResult(t, release, inCurrentType))
		})
	}
}

// goldenResult computes the state from the golden events of a release, after a change of them.
func goldenResult(
	t *testing.T, release string, change func(kind string, data map[string]any) string,
) actualstate.Result {
	t.Helper()
	stored := map[string][]byte{}
	for _, kind := range []string{"observed.deployment.v1", "observed.replicaset.v1", "observed.pod.v1"} {
		raw, err := os.ReadFile(filepath.Join(release, kind+".json"))
		require.NoError(t, err)
		e, err := event.UnmarshalStructured(raw)
		require.NoError(t, err)
		var data map[string]any
		require.NoError(t, json.Unmarshal(e.Data(), &data))
		object := data["object"].(map[string]any)
		delete(object, "deleted_at") // a pod that is being deleted does not count
		present := change(kind, data)
		changed, err := json.Marshal(data)
		require.NoError(t, err)
		namespace := object["namespace"].(string)
		stored[kind] = []byte(decode(t, present, string(changed), namespace, "tidy-otter").Data)
	}
	deployment, err := ingest.DecodeStoredDeployment(stored["observed.deployment.v1"])
	require.NoError(t, err)
	replicaSet, err := ingest.DecodeStoredReplicaSet(stored["observed.replicaset.v1"])
	require.NoError(t, err)
	var pod events.ObservedPod
	require.NoError(t, json.Unmarshal(stored["observed.pod.v1"], &pod))
	return actualstate.Compute(actualstate.Input{
		Deployment: &deployment, ReplicaSets: []events.ObservedWorkloadRevision{replicaSet}, Pods: []events.ObservedPod{pod},
	})
}

// inCurrentType converts an event of version 0.1 to the current type.
func inCurrentType(kind string, data map[string]any) string {
	switch kind {
	case "observed.deployment.v1":
		data["kind"], data["strategy"] = "deployment", "RollingUpdate"
		return "observed.workload.v1"
	case "observed.replicaset.v1":
		data["kind"], data["workload_uid"] = "replicaset", "u"
		data["workload"], data["template_hash"] = data["deployment"], data["pod_template_hash"]
		delete(data, "deployment")
		delete(data, "pod_template_hash")
		return "observed.workload_revision.v1"
	default:
		return kind
	}
}

// The rows are as version 0.1 stored them.
func TestRowsOfVersion01AreRead(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	for _, row := range []struct{ kind, name, data string }{
		{"deployment", "ide", `{"conditions":[` +
			`{"reason":"MinimumReplicasUnavailable","status":"False","type":"Available"},` +
			`{"reason":"ReplicaSetUpdated","status":"True","type":"Progressing"}],` +
			`"generation":1,"has_status":true,"object":{"cluster_uid":"cluster-1","name":"ide","namespace":"ws-7-ide",` +
			`"observed_at":"2026-03-04T05:06:00Z","resource_version":"8","uid":"uid-ide","update_type":"partial",` +
			`"verb":"upserted"},"observed_generation":1,"revision":3,"spec_replicas":1,"unavailable_replicas":1}`},
		{"replicaset", "ide-h", `{"deployment":"ide","object":{"cluster_uid":"cluster-1","name":"ide-h",` +
			`"namespace":"ws-7-ide","observed_at":"2026-03-04T05:06:00Z","resource_version":"9","uid":"uid-ide-h",` +
			`"update_type":"partial","verb":"upserted"},"pod_template_hash":"h","revision":3}`},
	} {
		_, err := w.pool.Exec(t.Context(), `
			insert into observed_objects (agent_id, kind, namespace, name, uid, cluster_uid, epoch, resource_version, deleted,
				workspace_id, data)
			values (7, $1, 'ws-7-ide', $2, 'uid-' || $2, 'cluster-1', 1, 9, false, $3, $4)`,
			row.kind, row.name, ide.ID, row.data)
		require.NoError(t, err)
	}
	a.pod(ide, "ide-h-1", 10, func(p *events.ObservedPod) {
		p.Containers = []events.ContainerState{
			{Name: "c", State: events.ContainerStatusWaiting, Reason: "CrashLoopBackOff"},
		}
	})
	w.ingestAll()
	require.Equal(t, actualstate.Failed, w.get(ide.ID).ActualState, "by the rows, it is a pod of the current ReplicaSet")
	require.Equal(t, "CrashLoopBackOff", w.get(ide.ID).Reason)
}

func TestRebuildReplacesRowsOfVersion01(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	a.reportsDeployment(running(ide, 8))
	w.ingestAll()
	w.requireIdentical("before")
	before := w.dump()
	w.exec(`update observed_objects set data = replace(data, '"kind":"deployment",', '')`)
	require.NotEqual(t, before, w.dump())
	require.Contains(t, strings.Join(w.rebuild(true, 0).Differences, "\n"), "data is")
	w.rebuild(false, 0)
	require.Equal(t, before, w.dump())
	w.requireIdentical("after")
}

func TestObjectsOfOtherKindsAreRejected(t *testing.T) {
	t.Parallel()
	const object = `{"cluster_uid":"c","namespace":"n","name":"d","uid":"u","resource_version":"1","verb":"upserted",` +
		`"update_type":"partial","observed_at":"2026-01-02T03:04:05Z"}`
	for kind, data := range map[string]string{
		"observed.workload.v1": `{"object":` + object + `,"kind":"statefulset"}`,
		"observed.workload_revision.v1": `{"object":` + object + `,"kind":"controllerrevision","workload":"d",` +
			`"workload_uid":"u","revision":1}`,
	} {
		subject := cell.Observed(7, "deployment", "n", "d")
		_, err := tryDecode(t, kind, data, subject)
		require.ErrorContains(t, err, "does not belong on subject "+subject)
	}
}
