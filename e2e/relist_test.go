package e2e_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

// TestRelists breaks a watcher's watches off, and lets it begin them where they were or, since that is too old, anew.
func TestRelists(t *testing.T) {
	t.Parallel()
	var door *frontDoor
	s := startWith(t, stack.Options{Workloads: watcher.Workloads{Enabled: true}, Configure: func(service string, config any) {
		if service == stack.Watcher {
			cfg := config.(*watcher.Config)
			if door == nil {
				door = newFrontDoor(t, cfg.Kubernetes.Kubeconfig)
			}
			cfg.Kubernetes.Kubeconfig = door.kubeconfig
		}
	}})
	of := func(test func(*system, *frontDoor)) func(*system) { return func(s *system) { test(s, door) } }
	s.inTurn(
		promise{"a watch that goes on where it was loses nothing", of(watchGoesOn)},
		promise{"a watch that begins anew is silent where nothing happened", of(watchBeginsAnew)},
		promise{"what it may have missed is named", of(missedIsNamed)},
		promise{"the history is sound", requireSoundFacts},
	)
}

// whole waits until the cluster says that a Deployment is complete at a revision.
func (w *shop) whole(revision string) {
	w.t.Helper()
	awaitCluster(w.t, "revision "+revision+" is complete", func(ctx context.Context) (bool, error) {
		o, err := w.kube.AppsV1().Deployments(w.namespace).Get(ctx, shopName, metav1.GetOptions{})
		return err == nil && o.Annotations[revisionAnnotation] == revision && o.Status.ObservedGeneration >= o.Generation &&
			allAre(*o.Spec.Replicas, o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas), err
	})
}

func watchGoesOn(s *system, door *frontDoor) {
	w := s.shopDeployment("watch-goes-on", 2)
	door.close()
	w.image(secondImage)
	w.whole("2")
	w.image(thirdImage)
	w.whole("3")
	door.open()
	w.requireFacts("started 1", "completed 1", "started 2", "completed 2", "started 3", "completed 3")
}

func watchBeginsAnew(s *system, door *frontDoor) {
	idle, flying, other := s.shopDeployment("relisted-idle", 1), s.shopDeployment("relisted-in-flight", 1), s.shopDeployment("relisted-other", 1)
	flying.image(neverImage)
	told := []string{"started 1", "completed 1", "started 2"}
	flying.requireFacts(told...)
	for range 2 {
		door.close()
		door.openToNew()
	}
	other.image(secondImage)
	other.requireFacts("started 1", "completed 1", "started 2", "completed 2") // it is watched again
	idle.scale(2)
	idle.requireFacts("started 1", "completed 1", "scale_started 1→2", "scale_completed 1→2")
	flying.image(secondImage)
	flying.requireFacts(append(told, "superseded 2", "started 3", "completed 3")...)
}

func missedIsNamed(s *system, door *frontDoor) {
	flying, gone, made := s.shopDeployment("missed-in-flight", 2), s.shopDeployment("missed-deletion", 2), s.open("missed-creation", "deployment")
	told := []string{"started 1", "completed 1", "started 2"}
	for _, w := range []*shop{flying, gone} {
		w.image(neverImage)
		w.requireFacts(told...)
	}
	door.close()
	for _, w := range []*shop{flying, gone} {
		w.image(secondImage)
		w.whole("3")
	}
	flying.image(thirdImage)
	flying.whole("4")
	gone.remove()
	_, err := s.kube.AppsV1().Deployments(made.namespace).Create(s.t.Context(), &appsv1.Deployment{
		ObjectMeta: shopMeta(), Spec: appsv1.DeploymentSpec{Selector: shopSelector(), Template: shopPods()},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	made.whole("1")
	made.image(secondImage)
	made.whole("2")
	door.openToNew()
	flying.requireFacts(append(told, "gap [2 3]", "unknown 2", "started 3", "unknown 3", "started 4", "completed 4")...)
	gone.requireFacts(append(told, "gap [2]", "unknown 2", "removed")...)
	made.requireFacts("gap [1]", "started 1", "unknown 1", "started 2", "completed 2")
}

// nodeAddedIsNoDeploy has nodes come, idle and in flight.
func nodeAddedIsNoDeploy(s *system) {
	w := s.open("daemons-and-nodes", "daemonset")
	// Nodes come for others too: these pods run on those of this test.
	pods := shopPods()
	pods.Spec.NodeSelector = map[string]string{"pool": w.namespace}
	w.addNode(1)
	_, err := s.kube.AppsV1().DaemonSets(w.namespace).Create(s.t.Context(), &appsv1.DaemonSet{
		ObjectMeta: shopMeta(), Spec: appsv1.DaemonSetSpec{Selector: shopSelector(), Template: pods},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	told := []string{"started 1", "completed 1"}
	w.requireFacts(told...)
	w.addNode(2)
	w.awaitNodes(2, 2)
	w.image(secondImage)
	told = append(told, "started 2", "completed 2")
	w.requireFacts(told...)
	w.image(neverImage)
	told = append(told, "started 3")
	w.requireFacts(told...)
	w.addNode(3)
	w.awaitNodes(3, 1)
	w.image(thirdImage)
	w.requireFacts(append(told, "superseded 3", "started 4", "completed 4")...)
}

// addNode lets one of the lab's kubelets come.
func (w *shop) addNode(i int) {
	w.t.Helper()
	name := fmt.Sprintf("%s-%d", w.namespace, i)
	_, err := w.kube.CoreV1().Nodes().Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, "pool": w.namespace, "kubelab.lockstep.dev/kubelet": "running",
	}}}, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

// awaitNodes waits until so many nodes have a pod of the DaemonSet, and so many one that is available.
func (w *shop) awaitNodes(scheduled, available int32) {
	w.t.Helper()
	awaitCluster(w.t, "a pod on each node", func(ctx context.Context) (bool, error) {
		o, err := w.kube.AppsV1().DaemonSets(w.namespace).Get(ctx, shopName, metav1.GetOptions{})
		return err == nil && o.Status.CurrentNumberScheduled == scheduled && o.Status.NumberAvailable == available, err
	})
}
