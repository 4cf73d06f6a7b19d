package kube_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"lockstep.internal/services/watcher/kube"
	"lockstep.internal/services/watcher/kube/kubetest"
	"lockstep.internal/services/watcher/object"
)

func trackedScope() kube.Scope {
	return kube.Workloads(kube.WorkloadOptions{
		Selects:     func(labels map[string]string) bool { return labels["skip"] == "" },
		Annotations: []string{"app.kubernetes.io/"},
	})
}

// kept is what is kept of an object, as a listing returns it.
func kept[T metav1.Object](t *testing.T, resource string, kind object.Kind, o runtime.Object) T {
	t.Helper()
	server := kubetest.Start(t)
	server.Set(resource, 10, o)
	listing, err := newClient(
		t,
		server,
	).List(
		t.Context(),
		trackedScope(),
		kind,
		func(object.Key, string) object.Object { return nil },
	)
	require.NoError(t, err)
	require.Len(t, listing.Objects, 1)
	object, ok := listing.Objects[0].(T)
	require.True(t, ok, "%T", listing.Objects[0])
	return object
}

func at(second int) metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC))
}

func fields(manager, subresource string, second int, raw string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager:     manager,
		Operation:   metav1.ManagedFieldsOperationUpdate,
		APIVersion:  "apps/v1",
		Time:        new(at(second)),
		FieldsType:  "FieldsV1",
		FieldsV1:    metav1.NewFieldsV1(raw),
		Subresource: subresource,
	}
}

func tracked() *appsv1.Deployment {
	d := deployment("web", "u", 7)
	d.Generation, d.CreationTimestamp = 3, at(1)
	d.Annotations["app.kubernetes.io/part-of"] = "shop"
	d.ManagedFields = []metav1.ManagedFieldsEntry{
		fields("helm", "", 10, `{"f:spec":{"f:template":{"f:spec":{}}}}`),
		fields("kubectl-rollout", "", 20, `{"f:spec":{"f:template":{"f:metadata":{}}}}`),
		fields("labeller", "", 30, `{"f:metadata":{"f:annotations":{"f:template":{}}}}`),
		fields("kube-controller-manager", "status", 40, `{"f:status":{}}`),
	}
	d.Spec = appsv1.DeploymentSpec{
		Replicas:                new(int32(2)),
		ProgressDeadlineSeconds: new(int32(600)),
		MinReadySeconds:         4,
		Strategy:                appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"app": "web"},
				Annotations: map[string]string{
					"kubectl.kubernetes.io/restartedAt": "then",
					"lockstep.dev/commit":               "abc",
					"example.org/other":                 "x",
				},
			},
			Spec: corev1.PodSpec{
				InitContainers: []corev1.Container{{Name: "init", Image: "i:1"}},
				Containers: []corev1.Container{
					{Name: "main", Image: "m:1", Env: []corev1.EnvVar{{Name: "SECRET", Value: "hidden"}}},
				},
			},
		},
	}
	d.Status = appsv1.DeploymentStatus{
		ObservedGeneration:  2,
		Replicas:            5,
		UpdatedReplicas:     6,
		ReadyReplicas:       7,
		AvailableReplicas:   8,
		UnavailableReplicas: 9,
		TerminatingReplicas: new(int32(1)),
		Conditions: []appsv1.DeploymentCondition{
			{Type: "Progressing", Status: "True", Reason: "r", Message: "m", LastUpdateTime: at(2), LastTransitionTime: at(3)},
		},
	}
	return d
}

func TestDeploymentBecomesAWorkload(t *testing.T) {
	t.Parallel()
	w := kept[*object.Workload](t, kubetest.Deployments, object.Deployment, tracked())
	require.NotEmpty(t, w.Template.Digest)
	w.Template.Digest = "d"
	w.CreationTimestamp = metav1.Time{Time: w.CreationTimestamp.UTC()}
	condition := &w.Status.Conditions[0]
	condition.LastUpdated = metav1.Time{Time: condition.LastUpdated.UTC()}
	condition.LastTransitioned = metav1.Time{Time: condition.LastTransitioned.UTC()}
	require.Equal(t, &object.Workload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "ns",
			Name:              "web",
			UID:               "u",
			ResourceVersion:   "7",
			Generation:        3,
			CreationTimestamp: at(1),
			Labels:            map[string]string{"lockstep.dev/agent": "1"},
			Annotations:       map[string]string{"lockstep.dev/note": "kept", "app.kubernetes.io/part-of": "shop"},
		},
		Kind:             object.Deployment,
		Selected:         true,
		Replicas:         new(int32(2)),
		Strategy:         "Recreate",
		ProgressDeadline: new(int32(600)),
		MinReadySeconds:  4,
		Template: object.Template{
			Digest:      "d",
			Images:      []object.Image{{Container: "init", Image: "i:1"}, {Container: "main", Image: "m:1"}},
			RestartedAt: "then",
			Changed:     at(20).Time,
			By:          "kubectl-rollout",
			Labels:      map[string]string{"app": "web"},
			Annotations: map[string]string{"lockstep.dev/commit": "abc"},
		},
		Status: object.WorkloadStatus{
			Written:            true,
			ObservedGeneration: 2,
			Replicas:           5,
			Updated:            6,
			Ready:              7,
			Available:          8,
			Unavailable:        9,
			Terminating:        new(int32(1)),
			Conditions: []object.Condition{
				{Type: "Progressing", Status: "True", Reason: "r", Message: "m", LastUpdated: at(2), LastTransitioned: at(3)},
			},
		},
	}, w)
	require.NotContains(t, fmt.Sprintf("%+v", w), "hidden")
}

func TestTemplateDigestIgnoresRestarts(t *testing.T) {
	t.Parallel()
	digest := func(change func(*appsv1.Deployment)) string {
		d := tracked()
		change(d)
		return kept[*object.Workload](t, kubetest.Deployments, object.Deployment, d).Template.Digest
	}
	base := digest(func(*appsv1.Deployment) {})
	for name, change := range map[string]func(*appsv1.Deployment){
		"another restart": func(d *appsv1.Deployment) {
			d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] = "later"
		},
		"no restart": func(d *appsv1.Deployment) {
			delete(d.Spec.Template.Annotations, "kubectl.kubernetes.io/restartedAt")
		},
		"scaled, paused": func(d *appsv1.Deployment) { d.Spec.Replicas, d.Spec.Paused, d.Labels = new(int32(9)), true, nil },
	} {
		require.Equal(t, base, digest(change), name)
	}
	for name, change := range map[string]func(*appsv1.Deployment){
		"an annotation":  func(d *appsv1.Deployment) { d.Spec.Template.Annotations["example.org/other"] = "y" },
		"an environment": func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Env[0].Value = "y" },
		"an image":       func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "m:2" },
	} {
		require.NotEqual(t, base, digest(change), name)
	}
	bare := digest(func(d *appsv1.Deployment) {
		d.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "x"}
	})
	require.Equal(t, bare, digest(func(d *appsv1.Deployment) { d.Spec.Template.Annotations = nil }))
}

func TestUnselectedWorkloadKeepsItsIdentityOnly(t *testing.T) {
	t.Parallel()
	d := tracked()
	d.Labels["skip"] = "yes"
	d.CreationTimestamp = metav1.Time{}
	require.Equal(t, &object.Workload{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u", ResourceVersion: "7"}, Kind: object.Deployment,
	}, kept[*object.Workload](t, kubetest.Deployments, object.Deployment, d))
}

func TestOtherKindsBecomeWorkloads(t *testing.T) {
	t.Parallel()
	d := tracked()
	set := kept[*object.Workload](t, kubetest.StatefulSets, object.StatefulSet, &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"},
		ObjectMeta: d.ObjectMeta,
		Spec: appsv1.StatefulSetSpec{
			Template:        d.Spec.Template,
			Replicas:        new(int32(3)),
			MinReadySeconds: 1,
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
				Type:          appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))},
			},
		},
		Status: appsv1.StatefulSetStatus{
			ObservedGeneration: 4,
			Replicas:           5,
			ReadyReplicas:      6,
			UpdatedReplicas:    7,
			AvailableReplicas:  8,
			CurrentRevision:    "c",
			UpdateRevision:     "u",
		},
	})
	require.Equal(t, object.WorkloadStatus{
		Written:            true,
		ObservedGeneration: 4,
		Replicas:           5,
		Ready:              6,
		Updated:            7,
		Available:          8,
		CurrentRevision:    "c",
		UpdateRevision:     "u",
	}, set.Status)
	require.EqualValues(t, 2, set.Partition)
	require.EqualValues(t, 3, *set.Replicas)
	require.Equal(t, "RollingUpdate", set.Strategy)

	d.Annotations["deprecated.daemonset.template.generation"] = "12"
	daemons := kept[*object.Workload](t, kubetest.DaemonSets, object.DaemonSet, &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: d.ObjectMeta,
		Spec: appsv1.DaemonSetSpec{
			Template:       d.Spec.Template,
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
		},
		Status: appsv1.DaemonSetStatus{
			ObservedGeneration:     3,
			DesiredNumberScheduled: 4,
			CurrentNumberScheduled: 5,
			UpdatedNumberScheduled: 6,
			NumberReady:            7,
			NumberAvailable:        8,
			NumberUnavailable:      9,
		},
	})
	require.Equal(t, object.WorkloadStatus{
		Written: true, ObservedGeneration: 3, Desired: 4, Replicas: 5, Updated: 6, Ready: 7, Available: 8, Unavailable: 9,
	}, daemons.Status)
	require.Equal(t, "12", daemons.TemplateGeneration)
	require.EqualValues(t, 4, *daemons.Replicas)
	require.Equal(t, "OnDelete", daemons.Strategy)
}

func TestReplicaSetsAndControllerRevisionsBecomeRevisions(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{
		Namespace:       "ns",
		Name:            "web-1",
		UID:             "r",
		ResourceVersion: "8",
		Labels:          map[string]string{"pod-template-hash": "h", "controller-revision-hash": "g"},
		Annotations: map[string]string{
			"deployment.kubernetes.io/revision":         "4",
			"deployment.kubernetes.io/revision-history": "1,3",
			"lockstep.dev/commit":                       "abc",
		},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "u", Controller: new(true)},
		},
	}
	set := kept[*object.Revision](t, kubetest.ReplicaSets, object.ReplicaSet, &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"}, ObjectMeta: meta,
	})
	identity := metav1.ObjectMeta{
		Namespace:       "ns",
		Name:            "web-1",
		UID:             "r",
		ResourceVersion: "8",
		Annotations:     map[string]string{"lockstep.dev/commit": "abc"},
	}
	require.Equal(t, &object.Revision{
		ObjectMeta: identity,
		Kind:       object.ReplicaSet,
		Owner:      object.Owner{Kind: object.Deployment, Name: "web", UID: "u"},
		Number:     4,
		History:    []int64{1, 3},
		Hash:       "h",
	}, set)

	meta.OwnerReferences[0].Kind = "DaemonSet"
	revision := kept[*object.Revision](
		t,
		kubetest.ControllerRevisions,
		object.ControllerRevision,
		&appsv1.ControllerRevision{
			TypeMeta: metav1.TypeMeta{
				APIVersion: "apps/v1",
				Kind:       "ControllerRevision",
			},
			ObjectMeta: meta,
			Revision:   5,
			Data:       runtime.RawExtension{Raw: []byte(`{"spec":{}}`)},
		},
	)
	require.Equal(t, &object.Revision{
		ObjectMeta: identity,
		Kind:       object.ControllerRevision,
		Owner:      object.Owner{Kind: object.DaemonSet, Name: "web", UID: "u"},
		Number:     5,
		Hash:       "g",
	}, revision)

	meta.OwnerReferences[0].APIVersion, meta.OwnerReferences[0].Kind = "argoproj.io/v1alpha1", "Deployment"
	foreign := kept[*object.Revision](t, kubetest.ReplicaSets, object.ReplicaSet, &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"}, ObjectMeta: meta,
	})
	require.Zero(t, foreign.Owner, "a kind of another group with the same name")
}

// Most versions of a ReplicaSet differ only in the number of its pods, which is not reported.
func TestRevisionIsReportedWhenItsContentChanges(t *testing.T) {
	t.Parallel()
	server := kubetest.Start(t)
	set := func(version int, owner, revision string) *metav1.PartialObjectMetadata {
		d := deployment("web-1", "r", version)
		d.Annotations["deployment.kubernetes.io/revision"] = revision
		d.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "Deployment", Name: owner, UID: "u", Controller: new(true)},
		}
		// As in watch events of the API server.
		return &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
			ObjectMeta: d.ObjectMeta,
		}
	}
	server.Set(kubetest.ReplicaSets, 10, set(5, "web", "1"))
	_, handled := watchScope(t, server, trackedScope())
	require.Equal(t, "upserted replicaset web-1@5 initial", handled.next(t))
	server.Send(kubetest.ReplicaSets, "MODIFIED", set(11, "web", "1"))
	server.Send(kubetest.ReplicaSets, "MODIFIED", set(12, "web", "2"))
	require.Equal(t, "upserted replicaset web-1@12", handled.next(t))
	server.Send(kubetest.ReplicaSets, "MODIFIED", set(13, "other", "2"))
	require.Equal(t, "deleted replicaset web-1@12 missed", handled.next(t), "another workload controls it")
	require.Equal(t, "upserted replicaset web-1@13", handled.next(t))
}
