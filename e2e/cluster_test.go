package e2e_test

import (
	"context"
	"encoding/json"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/schemas/gen/events"
)

// What the system promises to write on its objects.
const (
	labelAgent         = "lockstep.dev/agent"
	labelWorkspace     = "lockstep.dev/workspace"
	labelWorkspaceName = "lockstep.dev/workspace-name"
	desiredRevision    = "lockstep.dev/desired-revision"
)

// faultAnnotation makes a pod of the cluster misbehave.
const faultAnnotation = "kubelab.lockstep.dev/fault"

// clusterTick is between looks at the cluster.
const clusterTick = 50 * time.Millisecond

func (w *workspace) deployment() *appsv1.Deployment {
	w.t.Helper()
	found, err := w.s.kube.AppsV1().Deployments(w.namespace).Get(w.t.Context(), w.name, metav1.GetOptions{})
	require.NoError(w.t, err)
	return found
}

func (w *workspace) claim() *corev1.PersistentVolumeClaim {
	w.t.Helper()
	found, err := w.s.kube.CoreV1().PersistentVolumeClaims(w.namespace).Get(w.t.Context(), w.name+"-data", metav1.GetOptions{})
	require.NoError(w.t, err)
	return found
}

// pods are those that are not on their way out.
func (w *workspace) pods() []corev1.Pod {
	w.t.Helper()
	list, err := w.s.kube.CoreV1().Pods(w.namespace).List(w.t.Context(), metav1.ListOptions{})
	require.NoError(w.t, err)
	var staying []corev1.Pod
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			staying = append(staying, pod)
		}
	}
	return staying
}

// pod is the only one.
func (w *workspace) pod() corev1.Pod {
	w.t.Helper()
	pods := w.pods()
	require.Len(w.t, pods, 1)
	return pods[0]
}

func (w *workspace) podUID() types.UID {
	w.t.Helper()
	return w.pod().UID
}

// breakPod puts a fault on the running pod; an empty one heals it.
func (w *workspace) breakPod(fault string) {
	w.t.Helper()
	var value any
	if fault != "" {
		value = fault
	}
	w.patchPod(w.pod().Name, map[string]any{"annotations": map[string]any{faultAnnotation: value}})
}

// deleteDeployment is what somebody does behind the system's back.
func (w *workspace) deleteDeployment() {
	w.t.Helper()
	require.NoError(w.t, w.s.kube.AppsV1().Deployments(w.namespace).Delete(w.t.Context(), w.name, metav1.DeleteOptions{}))
}

// awaitCluster looks at the cluster until it is as wanted.
func (w *workspace) awaitCluster(wanted string, is func(ctx context.Context) (bool, error)) {
	w.t.Helper()
	awaitCluster(w.t, wanted, is)
}

func awaitCluster(t *testing.T, wanted string, is func(ctx context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.Eventually(t, func() bool {
		ok, err := is(ctx)
		return err == nil && ok
	}, patience, clusterTick, wanted)
}

// labels that every object of the workspace carries.
func (w *workspace) labels() map[string]string {
	return map[string]string{
		labelAgent: strconv.FormatInt(w.agent, 10), labelWorkspace: w.id, labelWorkspaceName: w.name,
	}
}

// objects are all objects in the cluster that carry the workspace's label and that somebody applied, by kind and name.
func (w *workspace) objects() []events.ObjectReference {
	w.t.Helper()
	ctx, selector := w.t.Context(), metav1.ListOptions{LabelSelector: labelWorkspace + "=" + w.id}
	var found []events.ObjectReference
	add := func(version, kind string, object metav1.Object) {
		if object.GetNamespace() == home(w.agent) {
			return // the inventory
		}
		found = append(found, events.ObjectReference{ApiVersion: version, Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()})
		for key, value := range w.labels() {
			require.Equal(w.t, value, object.GetLabels()[key], "label %s of %s %s", key, kind, object.GetName())
		}
	}
	namespaces, err := w.s.kube.CoreV1().Namespaces().List(ctx, selector)
	require.NoError(w.t, err)
	for i := range namespaces.Items {
		add("v1", "Namespace", &namespaces.Items[i])
	}
	accounts, err := w.s.kube.CoreV1().ServiceAccounts("").List(ctx, selector)
	require.NoError(w.t, err)
	for i := range accounts.Items {
		add("v1", "ServiceAccount", &accounts.Items[i])
	}
	policies, err := w.s.kube.NetworkingV1().NetworkPolicies("").List(ctx, selector)
	require.NoError(w.t, err)
	for i := range policies.Items {
		add("networking.k8s.io/v1", "NetworkPolicy", &policies.Items[i])
	}
	claims, err := w.s.kube.CoreV1().PersistentVolumeClaims("").List(ctx, selector)
	require.NoError(w.t, err)
	for i := range claims.Items {
		add("v1", "PersistentVolumeClaim", &claims.Items[i])
	}
	services, err := w.s.kube.CoreV1().Services("").List(ctx, selector)
	require.NoError(w.t, err)
	for i := range services.Items {
		add("v1", "Service", &services.Items[i])
	}
	held, err := w.s.kube.CoreV1().Secrets("").List(ctx, selector)
	require.NoError(w.t, err)
	for i := range held.Items {
		add("v1", "Secret", &held.Items[i])
	}
	deployments, err := w.s.kube.AppsV1().Deployments("").List(ctx, selector)
	require.NoError(w.t, err)
	for i := range deployments.Items {
		add("apps/v1", "Deployment", &deployments.Items[i])
	}
	return found
}

// deploymentRevision is the desired revision that the Deployment was applied with.
func (w *workspace) deploymentRevision() int64 {
	w.t.Helper()
	revision, err := strconv.ParseInt(w.deployment().Annotations[desiredRevision], 10, 64)
	require.NoError(w.t, err)
	return revision
}

// home is the namespace where an agent keeps its own things.
func home(agent int64) string { return "lockstep-agent-" + strconv.FormatInt(agent, 10) }

// inventory is what the dispatcher says it has made, and before that of which revision.
func (w *workspace) inventory() (string, []events.ObjectReference) {
	w.t.Helper()
	var objects []events.ObjectReference
	held, err := w.s.kube.CoreV1().ConfigMaps(home(w.agent)).Get(w.t.Context(), "workspace-"+w.id, metav1.GetOptions{})
	require.NoError(w.t, err)
	require.NoError(w.t, json.Unmarshal([]byte(held.Data["objects"]), &objects))
	return held.Data["desired_revision"], objects
}

func (w *workspace) requireGone() {
	w.t.Helper()
	ctx := w.t.Context()
	_, err := w.s.kube.CoreV1().Namespaces().Get(ctx, w.namespace, metav1.GetOptions{})
	require.True(w.t, apierrors.IsNotFound(err), "the namespace is gone: %v", err)
	require.Empty(w.t, w.objects(), "objects are gone")
	_, err = w.s.kube.CoreV1().ConfigMaps(home(w.agent)).Get(ctx, "workspace-"+w.id, metav1.GetOptions{})
	require.True(w.t, apierrors.IsNotFound(err), "the inventory is gone: %v", err)
}
