package watcher_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher"
	"lockstep.internal/services/watcher/kube"
)

func someWorkload() *kube.Workload {
	at := metav1.NewTime(epoch())
	meta := identified("web", "u", 42)
	meta.Generation, meta.CreationTimestamp, meta.DeletionTimestamp = 3, at, &at
	meta.Labels, meta.Annotations = map[string]string{"team": "shop"}, map[string]string{"deployment.kubernetes.io/revision": "4"}
	return &kube.Workload{
		ObjectMeta: meta, Kind: kube.StatefulSet, Followed: true, Replicas: new(int32(2)), Paused: true, Strategy: "RollingUpdate", Partition: 1,
		ProgressDeadline: new(int32(600)), MinReadySeconds: 5,
		Template: kube.Template{
			Digest: "d", Images: []kube.Image{{Container: "main", Image: "m:1"}}, RestartedAt: "then", Changed: epoch(), By: "helm",
			Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"lockstep.dev/commit": "abc"},
		},
		TemplateGeneration: "12",
		Status: kube.WorkloadStatus{
			Written: true, ObservedGeneration: 2, Replicas: 5, Updated: 6, Ready: 7, Available: 8, Unavailable: 9, Terminating: new(int32(10)),
			CurrentRevision: "c", UpdateRevision: "u",
			Conditions: []kube.Condition{{Type: "Progressing", Status: "True", Reason: "r", Message: "m", LastUpdated: at, LastTransitioned: at}, {Type: "Empty"}},
		},
	}
}

func TestAWorkloadIsTold(t *testing.T) {
	t.Parallel()
	w := someWorkload()
	d := delivery(kube.StatefulSet, w)
	d.Skipped = 3
	got, fact := observed[events.ObservedWorkload](t, d, events.TypeObservedWorkload)
	require.Equal(t, "lockstep.local.observed.7.workload.statefulset.ns.web", fact.Subject)
	require.Equal(t, "statefulset/ns/web", fact.Event.Subject())
	require.Equal(t, events.ObservedWorkload{
		Object: events.ObjectMeta{
			ClusterUID: "cluster", Namespace: "ns", Name: "web", UID: "u", ResourceVersion: "42", Verb: events.VerbUpserted, UpdateType: events.UpdateTypePartial,
			ObservedAt: epoch(), CreatedAt: new(epoch()), DeletedAt: new(epoch()), Labels: w.Labels, Annotations: w.Annotations,
		},
		Kind: events.WorkloadKindStatefulset, SkippedVersions: 3, Generation: 3, ObservedGeneration: 2, SpecReplicas: new(2), Paused: true, Strategy: "RollingUpdate", Partition: 1,
		ProgressDeadlineSeconds: new(600), MinReadySeconds: 5, Revision: 4, TemplateGeneration: 12, CurrentRevision: "c", UpdateRevision: "u",
		Template: &events.PodTemplate{
			Digest: "d", Images: []events.TemplateImage{{Container: "main", Image: "m:1"}}, RestartedAt: "then", ChangedAt: new(epoch()), ChangedBy: "helm",
			Labels: w.Template.Labels, Annotations: w.Template.Annotations,
		},
		HasStatus: true, Replicas: 5, UpdatedReplicas: 6, ReadyReplicas: 7, AvailableReplicas: 8, UnavailableReplicas: 9, TerminatingReplicas: new(10),
		Conditions: []events.Condition{{Type: "Progressing", Status: "True", Reason: "r", Message: "m", LastUpdateTime: new(epoch()), LastTransitionTime: new(epoch())}},
	}, got)
}

func TestAWorkloadThatHasLeftIsToldAsNoMoreThanThat(t *testing.T) {
	t.Parallel()
	d := delivery(kube.Deployment, &kube.Workload{ObjectMeta: identified("web", "u", 42), Kind: kube.Deployment})
	d.Verb, d.Unselected = events.VerbDeleted, true
	got, _ := observed[events.ObservedWorkload](t, d, events.TypeObservedWorkload)
	require.Equal(t, events.ObservedWorkload{
		Object: events.ObjectMeta{
			ClusterUID: "cluster", Namespace: "ns", Name: "web", UID: "u", ResourceVersion: "42", Verb: events.VerbDeleted, UpdateType: events.UpdateTypePartial, ObservedAt: epoch(),
		},
		Kind: events.WorkloadKindDeployment, Unselected: true,
	}, got)
}

func TestARevisionIsToldUnderItsWorkload(t *testing.T) {
	t.Parallel()
	r := &kube.Revision{
		ObjectMeta: identified("web-1", "r", 8), Kind: kube.ControllerRevision, Owner: kube.Owner{Kind: kube.DaemonSet, Name: "web", UID: "u"}, Number: 5, History: []int64{1, 3}, Hash: "h",
	}
	got, fact := observed[events.ObservedWorkloadRevision](t, delivery(kube.ControllerRevision, r), events.TypeObservedWorkloadRevision)
	require.Equal(t, "lockstep.local.observed.7.workload.daemonset.ns.web", fact.Subject)
	require.Equal(t, "controllerrevision/ns/web-1", fact.Event.Subject())
	got.Object = events.ObjectMeta{}
	require.Equal(t, events.ObservedWorkloadRevision{
		Kind: events.WorkloadRevisionKindControllerrevision, Workload: "web", WorkloadUID: "u", Revision: 5, RevisionHistory: []int{1, 3}, TemplateHash: "h",
	}, got)
}

func TestWhatWasSkippedIsNoPartOfAnID(t *testing.T) {
	t.Parallel()
	d := delivery(kube.StatefulSet, someWorkload())
	_, plain := observed[events.ObservedWorkload](t, d, events.TypeObservedWorkload)
	d.Skipped = 3
	_, after := observed[events.ObservedWorkload](t, d, events.TypeObservedWorkload)
	require.Equal(t, plain.Event.ID(), after.Event.ID())
}

func TestTheScopeOfAResyncIsTold(t *testing.T) {
	t.Parallel()
	r := reporter()
	r.Scope, r.Selection = watcher.ScopeWorkloads, "s"
	resync := watcher.Resync{ID: "r", Cause: events.ResyncCauseStart, Versions: map[kube.Kind]string{
		kube.ReplicaSet: "1", kube.ControllerRevision: "2", kube.Deployment: "3", kube.StatefulSet: "4", kube.DaemonSet: "5",
	}}
	fact, err := r.Begun(resync, epoch())
	require.NoError(t, err)
	require.NoError(t, events.Validate(events.TypeObservedResyncBegun, fact.Event.Data()))
	var begun events.ObservedResyncBegun
	require.NoError(t, json.Unmarshal(fact.Event.Data(), &begun))
	require.EqualValues(t, "workloads", begun.Scope)
	require.Equal(t, "s", begun.Selection)
	require.Equal(t, []events.ListVersion{
		{Kind: "deployment", ResourceVersion: "3"},
		{Kind: "statefulset", ResourceVersion: "4"},
		{Kind: "daemonset", ResourceVersion: "5"},
		{Kind: "replicaset", ResourceVersion: "1"},
		{Kind: "controllerrevision", ResourceVersion: "2"},
	}, begun.ListVersions)
	fact, err = r.Ended(resync, epoch())
	require.NoError(t, err)
	require.Contains(t, string(fact.Event.Data()), `"scope":"workloads"`)
	fact, err = r.Rejected(delivery(kube.StatefulSet, someWorkload()), 2, 1)
	require.NoError(t, err)
	require.NoError(t, events.Validate(events.TypeObservedRejected, fact.Event.Data()))
	require.Contains(t, string(fact.Event.Data()), `"scope":"workloads"`)
}

// What is in a cluster is written by others: whatever it is, the event is one that its schema allows.
func FuzzEveryWorkloadCanBeTold(f *testing.F) {
	f.Add("name", "text", "abc", int32(1), int64(7))
	f.Add("*.>", "\xff\x00", "", int32(-1), int64(-1))
	f.Fuzz(func(t *testing.T, name, text, number string, count int32, long int64) {
		if name == "" || text == "" {
			return
		}
		w := someWorkload()
		w.Name, w.Strategy, w.Replicas, w.Partition, w.MinReadySeconds, w.ProgressDeadline, w.Generation = name, text, &count, count, count, &count, long
		w.TemplateGeneration, w.Annotations = number, map[string]string{"deployment.kubernetes.io/revision": number, text: text}
		w.Template.Images, w.Template.RestartedAt, w.Template.By, w.Template.Changed = []kube.Image{{Container: text, Image: number}}, number, text, time.Time{}
		w.Status = kube.WorkloadStatus{
			ObservedGeneration: long, Replicas: count, Updated: count, Ready: count, Available: count, Unavailable: count, Terminating: &count,
			CurrentRevision: text, Conditions: []kube.Condition{{Type: number, Status: text, Message: text}},
		}
		r := &kube.Revision{
			ObjectMeta: identified(name, "r", 8), Kind: kube.ReplicaSet, Owner: kube.Owner{Kind: kube.Deployment, Name: name, UID: "u"}, Number: long, History: []int64{long}, Hash: number,
		}
		for kind, o := range map[kube.Kind]metav1.Object{kube.Deployment: w, kube.ReplicaSet: r} {
			fact, err := reporter().Observed(delivery(kind, o))
			if err != nil {
				require.ErrorContains(t, err, "event")
				continue
			}
			require.NoError(t, events.Validate(fact.Event.Type(), fact.Event.Data()), "%s", fact.Event.Data())
			require.Equal(t, int64(7), agentOf(t, fact.Subject))
		}
	})
}
