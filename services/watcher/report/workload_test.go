package report_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/object"
	"lockstep.internal/services/watcher/report"
	"lockstep.internal/services/watcher/resync"
)

func someWorkload() *object.Workload {
	at := metav1.NewTime(epoch())
	meta := identified("web", "u", 42)
	meta.Generation, meta.CreationTimestamp, meta.DeletionTimestamp = 3, at, &at
	meta.Labels = map[string]string{"team": "shop"}
	meta.Annotations = map[string]string{"deployment.kubernetes.io/revision": "4"}
	return &object.Workload{
		ObjectMeta:       meta,
		Kind:             object.StatefulSet,
		Selected:         true,
		Replicas:         new(int32(2)),
		Paused:           true,
		Strategy:         "RollingUpdate",
		Partition:        1,
		ProgressDeadline: new(int32(600)),
		MinReadySeconds:  5,
		Template: object.Template{
			Digest:      "d",
			Images:      []object.Image{{Container: "main", Image: "m:1"}},
			RestartedAt: "then",
			Changed:     epoch(),
			By:          "helm",
			Labels:      map[string]string{"app": "web"},
			Annotations: map[string]string{"lockstep.dev/commit": "abc"},
		},
		TemplateGeneration: "12",
		Status: object.WorkloadStatus{
			Written:            true,
			ObservedGeneration: 2,
			Replicas:           5,
			Updated:            6,
			Ready:              7,
			Available:          8,
			Unavailable:        9,
			Terminating:        new(int32(10)),
			CurrentRevision:    "c",
			UpdateRevision:     "u",
			Conditions: []object.Condition{
				{Type: "Progressing", Status: "True", Reason: "r", Message: "m", LastUpdated: at, LastTransitioned: at},
				{Type: "Empty"},
			},
		},
	}
}

func TestWorkloadEvent(t *testing.T) {
	t.Parallel()
	w := someWorkload()
	d := deliveryOf(object.StatefulSet, w)
	d.Skipped = 3
	got, message := observed[events.ObservedWorkload](t, d, events.TypeObservedWorkload)
	require.Equal(t, "lockstep.local.observed.7.workload.statefulset.ns.web", message.Subject)
	require.Equal(t, "statefulset/ns/web", message.Event.Subject())
	require.Equal(t, events.ObservedWorkload{
		Object: events.ObjectMeta{
			ClusterUID:      "cluster",
			Namespace:       "ns",
			Name:            "web",
			UID:             "u",
			ResourceVersion: "42",
			Verb:            events.VerbUpserted,
			UpdateType:      events.UpdateTypePartial,
			ObservedAt:      epoch(),
			CreatedAt:       new(epoch()),
			DeletedAt:       new(epoch()),
			Labels:          w.Labels,
			Annotations:     w.Annotations,
		},
		Kind:                    events.WorkloadKindStatefulset,
		SkippedVersions:         3,
		Generation:              3,
		ObservedGeneration:      2,
		SpecReplicas:            new(2),
		Paused:                  true,
		Strategy:                "RollingUpdate",
		Partition:               1,
		ProgressDeadlineSeconds: new(600),
		MinReadySeconds:         5,
		Revision:                4,
		TemplateGeneration:      12,
		CurrentRevision:         "c",
		UpdateRevision:          "u",
		Template: &events.PodTemplate{
			Digest:      "d",
			Images:      []events.TemplateImage{{Container: "main", Image: "m:1"}},
			RestartedAt: "then",
			ChangedAt:   new(epoch()),
			ChangedBy:   "helm",
			Labels:      w.Template.Labels,
			Annotations: w.Template.Annotations,
		},
		HasStatus:           true,
		Replicas:            5,
		UpdatedReplicas:     6,
		ReadyReplicas:       7,
		AvailableReplicas:   8,
		UnavailableReplicas: 9,
		TerminatingReplicas: new(10),
		Conditions: []events.Condition{
			{
				Type:               "Progressing",
				Status:             "True",
				Reason:             "r",
				Message:            "m",
				LastUpdateTime:     new(epoch()),
				LastTransitionTime: new(epoch()),
			},
		},
	}, got)
}

func TestUnselectedWorkloadEventHasItsIdentityOnly(t *testing.T) {
	t.Parallel()
	d := deliveryOf(object.Deployment, &object.Workload{ObjectMeta: identified("web", "u", 42), Kind: object.Deployment})
	d.Verb, d.Unselected = events.VerbDeleted, true
	got, _ := observed[events.ObservedWorkload](t, d, events.TypeObservedWorkload)
	require.Equal(t, events.ObservedWorkload{
		Object: events.ObjectMeta{
			ClusterUID:      "cluster",
			Namespace:       "ns",
			Name:            "web",
			UID:             "u",
			ResourceVersion: "42",
			Verb:            events.VerbDeleted,
			UpdateType:      events.UpdateTypePartial,
			ObservedAt:      epoch(),
		},
		Kind: events.WorkloadKindDeployment, Unselected: true,
	}, got)
}

func TestRevisionIsPublishedUnderItsWorkload(t *testing.T) {
	t.Parallel()
	r := &object.Revision{
		ObjectMeta: identified("web-1", "r", 8),
		Kind:       object.ControllerRevision,
		Owner:      object.Owner{Kind: object.DaemonSet, Name: "web", UID: "u"},
		Number:     5,
		History:    []int64{1, 3},
		Hash:       "h",
	}
	d := deliveryOf(object.ControllerRevision, r)
	got, message := observed[events.ObservedWorkloadRevision](t, d, events.TypeObservedWorkloadRevision)
	require.Equal(t, "lockstep.local.observed.7.workload.daemonset.ns.web", message.Subject)
	require.Equal(t, "controllerrevision/ns/web-1", message.Event.Subject())
	got.Object = events.ObjectMeta{}
	require.Equal(t, events.ObservedWorkloadRevision{
		Kind:            events.WorkloadRevisionKindControllerrevision,
		Workload:        "web",
		WorkloadUID:     "u",
		Revision:        5,
		RevisionHistory: []int{1, 3},
		TemplateHash:    "h",
	}, got)
}

func TestEventIDDoesNotDependOnSkippedVersions(t *testing.T) {
	t.Parallel()
	d := deliveryOf(object.StatefulSet, someWorkload())
	_, plain := observed[events.ObservedWorkload](t, d, events.TypeObservedWorkload)
	d.Skipped = 3
	_, after := observed[events.ObservedWorkload](t, d, events.TypeObservedWorkload)
	require.Equal(t, plain.Event.ID(), after.Event.ID())
}

func TestResyncEventsHaveAScope(t *testing.T) {
	t.Parallel()
	r := reporter()
	r.Scope, r.Selection = report.ScopeWorkloads, "s"
	resync := resync.Resync{ID: "r", Cause: events.ResyncCauseStart, Versions: map[object.Kind]string{
		object.ReplicaSet:         "1",
		object.ControllerRevision: "2",
		object.Deployment:         "3",
		object.StatefulSet:        "4",
		object.DaemonSet:          "5",
	}}
	message, err := r.ResyncBegun(resync, epoch())
	require.NoError(t, err)
	require.NoError(t, events.Validate(events.TypeObservedResyncBegun, message.Event.Data()))
	var begun events.ObservedResyncBegun
	require.NoError(t, json.Unmarshal(message.Event.Data(), &begun))
	require.EqualValues(t, "workloads", begun.Scope)
	require.Equal(t, "s", begun.Selection)
	require.Equal(t, []events.ListVersion{
		{Kind: "deployment", ResourceVersion: "3"},
		{Kind: "statefulset", ResourceVersion: "4"},
		{Kind: "daemonset", ResourceVersion: "5"},
		{Kind: "replicaset", ResourceVersion: "1"},
		{Kind: "controllerrevision", ResourceVersion: "2"},
	}, begun.ListVersions)
	message, err = r.ResyncEnded(resync, epoch())
	require.NoError(t, err)
	require.Contains(t, string(message.Event.Data()), `"scope":"workloads"`)
	message, err = r.Rejected(deliveryOf(object.StatefulSet, someWorkload()), 2, 1)
	require.NoError(t, err)
	require.NoError(t, events.Validate(events.TypeObservedRejected, message.Event.Data()))
	require.Contains(t, string(message.Event.Data()), `"scope":"workloads"`)
}

// Whatever a cluster contains, the event matches its schema.
func FuzzWorkloadEventsMatchTheirSchema(f *testing.F) {
	f.Add("name", "text", "abc", int32(1), int64(7))
	f.Add("*.>", "\xff\x00", "", int32(-1), int64(-1))
	f.Fuzz(func(t *testing.T, name, text, number string, count int32, long int64) {
		if name == "" || text == "" {
			return
		}
		w := someWorkload()
		w.Name, w.Strategy, w.Generation, w.TemplateGeneration = name, text, long, number
		w.Replicas, w.Partition, w.MinReadySeconds, w.ProgressDeadline = &count, count, count, &count
		w.Annotations = map[string]string{"deployment.kubernetes.io/revision": number, text: text}
		w.Template.Images = []object.Image{{Container: text, Image: number}}
		w.Template.RestartedAt, w.Template.By, w.Template.Changed = number, text, time.Time{}
		w.Status = object.WorkloadStatus{
			ObservedGeneration: long,
			Replicas:           count,
			Updated:            count,
			Ready:              count,
			Available:          count,
			Unavailable:        count,
			Terminating:        &count,
			CurrentRevision:    text,
			Conditions:         []object.Condition{{Type: number, Status: text, Message: text}},
		}
		r := &object.Revision{
			ObjectMeta: identified(name, "r", 8),
			Kind:       object.ReplicaSet,
			Owner:      object.Owner{Kind: object.Deployment, Name: name, UID: "u"},
			Number:     long,
			History:    []int64{long},
			Hash:       number,
		}
		for kind, o := range map[object.Kind]metav1.Object{object.Deployment: w, object.ReplicaSet: r} {
			message, err := reporter().Observed(deliveryOf(kind, o))
			if err != nil {
				require.ErrorContains(t, err, "event")
				continue
			}
			require.NoError(t, events.Validate(message.Event.Type(), message.Event.Data()), "%s", message.Event.Data())
			require.Equal(t, int64(7), agentOf(t, message.Subject))
		}
	})
}
