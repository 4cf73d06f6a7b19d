package inflight_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/inflight"
	"lockstep.internal/services/watcher/object"
)

func start() time.Time { return time.Unix(1_000_000, 0) }

// deployment returns a Deployment of 2 replicas that rolls out the revision. Its one new pod is not available.
func deployment(revision string, changes ...func(w *object.Workload)) *object.Workload {
	w := &object.Workload{
		Kind: object.Deployment, Selected: true, Replicas: new(int32(2)),
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "d", ResourceVersion: "1", Generation: 2,
			Annotations: map[string]string{"deployment.kubernetes.io/revision": revision},
		},
		Status: object.WorkloadStatus{ObservedGeneration: 2, Replicas: 3, Updated: 1, Available: 2},
	}
	for _, change := range changes {
		change(w)
	}
	return w
}

func complete(w *object.Workload) { w.Status.Replicas, w.Status.Updated, w.Status.Available = 2, 2, 2 }

func noStatus(w *object.Workload) { w.Status = object.WorkloadStatus{} }

func crashed(w *object.Workload) { w.Status.Replicas, w.Status.Updated, w.Status.Available = 2, 2, 1 }

func replicaSet(name string, number int64) *object.Revision {
	return &object.Revision{
		Kind: object.ReplicaSet, Number: number, Hash: name,
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-" + name, UID: "rs-x"},
		Owner:      object.Owner{Kind: object.Deployment, Name: "web", UID: "d"},
	}
}

// observe observes an object at a time after the start.
func observe(t *inflight.Tracker, o object.Object, after time.Duration, changes ...func(v *object.Version)) {
	v := object.Version{Object: o, Verb: events.VerbUpserted, ObservedAt: start().Add(after)}
	for _, change := range changes {
		change(&v)
	}
	t.Observe(v)
}

// due returns when the next list is due, after the start; -1 for never.
func due(t *inflight.Tracker) time.Duration {
	_, at, _ := t.Next(start().Add(-time.Hour))
	if at.IsZero() {
		return -1
	}
	return at.Sub(start())
}

func TestPodsAreListedWhileARolloutMakesNoProgress(t *testing.T) {
	t.Parallel()
	tracker := inflight.NewTracker()
	observe(tracker, replicaSet("b", 2), 0)
	observe(tracker, deployment("2"), 0)
	require.Equal(t, 2*time.Second, due(tracker))
	for after := time.Second; after <= 20*time.Second; after += time.Second {
		observe(tracker, deployment("2"), after)
		require.Equal(t, min(after+2*time.Second, 10*time.Second), due(tracker), "changes postpone it, but not for ever")
	}
	latest := deployment("2")
	observe(tracker, latest, 0)
	target, _, ok := tracker.Next(start().Add(time.Minute))
	require.True(t, ok)
	require.Equal(t, inflight.Target{
		Workload: latest, Revision: "web-b", Selector: "pod-template-hash=b", Owner: "rs-x",
	}, target)

	at := start()
	for _, delay := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second} {
		tracker.Listed(target, "", at)
		at = at.Add(delay)
		require.Equal(t, at.Sub(start()), due(tracker), "it backs off")
	}
	tracker.Listed(target, "", at)
	require.Equal(t, at.Add(10*time.Second).Sub(start()), due(tracker))
	observe(tracker, deployment("2", complete), 0)
	require.EqualValues(t, -1, due(tracker))
	observe(tracker, deployment("2", crashed), 0)
	require.EqualValues(t, -1, due(tracker), "the rollout has ended")
	observe(tracker, deployment("3"), 0)
	require.Equal(t, 2*time.Second, due(tracker))
	_, _, ok = tracker.Next(start().Add(time.Minute))
	require.False(t, ok, "the ReplicaSet of the revision is not known yet")
	observe(tracker, replicaSet("c", 3), 0)
	target, _, ok = tracker.Next(start().Add(time.Minute))
	require.True(t, ok)
	require.Equal(t, "web-c", target.Revision)
	observe(tracker, deployment("3"), 0, func(v *object.Version) { v.Verb = events.VerbDeleted })
	require.EqualValues(t, -1, due(tracker))
	require.False(t, tracker.Listed(target, "late", start()))
}

func TestPodsAreNotListedWithoutARollout(t *testing.T) {
	t.Parallel()
	condition := func(set string) func(w *object.Workload) {
		return func(w *object.Workload) {
			w.Status.Conditions = []object.Condition{{
				Type: "Progressing", Reason: "NewReplicaSetAvailable",
				Message: `ReplicaSet "` + set + `" has successfully progressed.`,
			}}
		}
	}
	for name, test := range map[string]struct {
		workload *object.Workload
		want     time.Duration
	}{
		"paused":                      {deployment("2", func(w *object.Workload) { w.Paused = true }), -1},
		"no replicas":                 {deployment("2", func(w *object.Workload) { w.Replicas = new(int32(0)) }), -1},
		"no revision yet":             {deployment(""), -1},
		"all pods are available":      {deployment("2", func(w *object.Workload) { w.Status.Available = 3 }), -1},
		"crashed after its rollout":   {deployment("2", crashed, condition("web-b")), -1},
		"completed an earlier one":    {deployment("2", crashed, condition("web-a")), 2 * time.Second},
		"created, and no pods so far": {deployment("1", noStatus), 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tracker := inflight.NewTracker()
			observe(tracker, test.workload, 0, func(v *object.Version) { v.Origin = object.Initial })
			observe(tracker, replicaSet("b", 2), 0, func(v *object.Version) { v.Origin = object.Initial })
			require.Equal(t, test.want, due(tracker))
		})
	}
}

func TestPodsOfAllKindsAreSelectedByTheirNewestRevision(t *testing.T) {
	t.Parallel()
	for selector, w := range map[string]*object.Workload{
		"controller-revision-hash=web-2": deployment("", func(w *object.Workload) {
			w.Kind, w.Status.UpdateRevision = object.StatefulSet, "web-2"
		}),
		"pod-template-generation=7": deployment("", func(w *object.Workload) {
			w.Kind, w.TemplateGeneration = object.DaemonSet, "7"
		}),
	} {
		tracker := inflight.NewTracker()
		observe(tracker, w, 0)
		target, _, ok := tracker.Next(start().Add(time.Minute))
		require.True(t, ok)
		require.Equal(t, selector, target.Selector)
		require.Equal(t, "d", target.Owner)
	}
}

func TestListIsPublishedWhenItsSummaryChanges(t *testing.T) {
	t.Parallel()
	for _, origin := range []object.Origin{object.Changed, object.Initial} {
		tracker := inflight.NewTracker()
		observe(tracker, replicaSet("b", 2), 0)
		observe(tracker, deployment("2"), 0, func(v *object.Version) { v.Origin = origin })
		target, _, ok := tracker.Next(start().Add(time.Minute))
		require.True(t, ok)
		require.Equal(t, origin == object.Initial, tracker.Listed(target, "", start()),
			"an earlier leader may have published a failure")
		require.True(t, tracker.Listed(target, "ErrImagePull", start()))
		require.False(t, tracker.Listed(target, "ErrImagePull", start()))
		require.True(t, tracker.Listed(target, "", start()))
	}
}
