package history_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/tools/history"
)

func TestExpectedRollouts(t *testing.T) {
	t.Parallel()
	at := func(version int) time.Time { return time.Unix(int64(version), 0).UTC() }
	observed := func(version int, o metav1.Object) history.ObjectVersion {
		o.SetNamespace("shop")
		o.SetResourceVersion(strconv.Itoa(version))
		return history.ObjectVersion{At: at(version), Object: o}
	}
	gone := func(s history.ObjectVersion) history.ObjectVersion {
		s.Deleted = true
		return s
	}
	deployment := func(uid string, generation, observed int64, revision string, updated int32) *appsv1.Deployment {
		return &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{
				Name:        "web",
				UID:         types.UID(uid),
				Generation:  generation,
				Annotations: map[string]string{"deployment.kubernetes.io/revision": revision},
			},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))},
			Status: appsv1.DeploymentStatus{
				ObservedGeneration: observed,
				Replicas:           2,
				UpdatedReplicas:    updated,
				AvailableReplicas:  2,
			},
		}
	}
	owned := func(kind, uid string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, UID: types.UID(uid), Controller: new(true)}}
	}
	set := func(uid, revision, hash string) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Name: "web-" + hash, OwnerReferences: owned("Deployment", uid), Labels: map[string]string{"pod-template-hash": hash},
			Annotations: map[string]string{"deployment.kubernetes.io/revision": revision},
		}}
	}
	stateful := func(current, update string) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{
				Name:       "db",
				UID:        "s",
				Generation: 1,
			},
			Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1))},
			Status: appsv1.StatefulSetStatus{
				ObservedGeneration: 1,
				Replicas:           1,
				UpdatedReplicas:    1,
				AvailableReplicas:  1,
				CurrentRevision:    current,
				UpdateRevision:     update,
			},
		}
	}
	revision := func(kind, name string, number int64) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owned(kind, "s")},
			Revision:   number,
		}
	}
	daemon := func(template string, updated int32) *appsv1.DaemonSet {
		return &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{
				Name:        "log",
				UID:         "d",
				Generation:  1,
				Annotations: map[string]string{"deprecated.daemonset.template.generation": template},
			},
			Status: appsv1.DaemonSetStatus{
				ObservedGeneration:     1,
				UpdatedNumberScheduled: updated,
				DesiredNumberScheduled: 2,
				NumberAvailable:        2,
			},
		}
	}
	rollout := func(id string, revision, version int, completed bool) history.ExpectedRollout {
		return history.ExpectedRollout{ID: id, Revision: revision, StartedAt: at(version), Completed: completed}
	}
	timed := deployment("u", 1, 1, "1", 2)
	timed.ManagedFields = []metav1.ManagedFieldsEntry{
		{Time: new(metav1.NewTime(at(1))), FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:template":{}}}`)},
		{Time: new(metav1.NewTime(at(3))), FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)},
	}
	timed.Status.Conditions = []appsv1.DeploymentCondition{
		{
			Type:           appsv1.DeploymentAvailable,
			LastUpdateTime: metav1.NewTime(at(2)),
		},
		{Type: appsv1.DeploymentProgressing, LastUpdateTime: metav1.NewTime(at(3))},
	}
	made, reused := set("u", "1", "a"), set("u", "2", "a")
	made.CreationTimestamp, reused.CreationTimestamp = metav1.NewTime(at(2)), metav1.NewTime(at(2))
	reused.Annotations["deployment.kubernetes.io/revision-history"] = "1"
	for name, tc := range map[string]struct {
		versions []history.ObjectVersion
		want     history.ExpectedWorkload
	}{
		"a Deployment, in any order": {
			[]history.ObjectVersion{
				observed(3, deployment("u", 1, 1, "1", 2)), observed(2, set("u", "1", "a")),
				observed(1, deployment("u", 1,
					0, "", 0)),
			},
			history.ExpectedWorkload{
				UID: "u", Name: "shop/deployment/web", Created: at(1),
				Rollouts: []history.ExpectedRollout{rollout("c/u/1/a", 1, 2, true)},
			},
		},
		"a Deployment's times": {
			[]history.ObjectVersion{
				observed(1, deployment("u", 1, 0, "", 0)), observed(2, made), observed(3, timed),
				observed(4, reused),
			},
			history.ExpectedWorkload{
				UID: "u", Name: "shop/deployment/web", Created: at(1), TemplateChangedAt: []time.Time{at(1)},
				Rollouts: []history.ExpectedRollout{
					{
						ID: "c/u/1/a", Revision: 1, StartedAt: at(2), CreatedAt: at(2), Completed: true,
						CompletedAt: []time.Time{at(3)},
					},
					rollout("c/u/2/a", 2, 4, false),
				},
			},
		},
		"a condition of an old revision does not apply to the new one": {
			[]history.ObjectVersion{
				observed(1, deployment("u", 1, 0, "", 0)), observed(2, set("u", "1", "a")), observed(3, set("u", "2", "b")),
				observed(4, deployment("u", 2, 1, "1", 2)),
				observed(5, deployment("u", 2, 2, "2", 1)),
			},
			history.ExpectedWorkload{UID: "u", Name: "shop/deployment/web", Created: at(1), Rollouts: []history.ExpectedRollout{
				rollout("c/u/1/a", 1, 2, false), rollout("c/u/2/b", 2, 3, false),
			}},
		},
		"a recreated ReplicaSet is no rollout, nor is one after the deletion": {
			[]history.ObjectVersion{
				observed(1, deployment("u", 1, 0, "", 0)), observed(2, set("u", "1", "a")), gone(observed(3, set("u", "1", "a"))),
				observed(4, set("u", "1", "a")),
				gone(observed(5, deployment("u", 1, 0, "1", 0))), observed(6, set("u", "2", "b")),
			},
			history.ExpectedWorkload{
				UID: "u", Name: "shop/deployment/web", Created: at(1), Deleted: at(5),
				Rollouts: []history.ExpectedRollout{rollout("c/u/1/a", 1, 2, false)},
			},
		},
		"a StatefulSet's revision with a new number is a new rollout": {
			[]history.ObjectVersion{
				observed(1, stateful("", "")), observed(2, revision("StatefulSet", "db-a", 1)), observed(3, stateful("db-a",
					"db-a")), observed(4, revision("StatefulSet", "db-b", 2)),
				observed(5, stateful("db-a", "db-b")), observed(6, revision("StatefulSet", "db-a", 3)), observed(7, stateful("db-a",
					"db-a")),
			},
			history.ExpectedWorkload{UID: "s", Name: "shop/statefulset/db", Created: at(1), Rollouts: []history.ExpectedRollout{
				rollout("c/s/db-a/1", 1, 2, true), rollout("c/s/db-b/2", 2, 4, false), rollout("c/s/db-a/3", 3, 6, true),
			}},
		},
		"a DaemonSet": {
			[]history.ObjectVersion{observed(1, daemon("1", 2)), observed(2, daemon("2", 1)), observed(3, daemon("2", 2))},
			history.ExpectedWorkload{
				UID: "d", Name: "shop/daemonset/log", Created: at(1),
				Rollouts: []history.ExpectedRollout{rollout("c/d/1", 1, 1, true), rollout("c/d/2", 2, 2, true)},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, []history.ExpectedWorkload{tc.want}, history.ExpectedRollouts("c", tc.versions))
		})
	}
}
