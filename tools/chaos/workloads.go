package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockstep.internal/libs/retry"
)

const (
	workloadsNamespace = "chaos"
	workloadsCount     = 12
	pollInterval       = 50 * time.Millisecond
	// longestRest is the longest time between two changes of workloads.
	longestRest = 400 * time.Millisecond
)

// Images of workloads. The simulated kubelets derive faults from the names.
const (
	firstImage      = "registry.example/shop:1"
	lastImage       = "registry.example/shop:3"
	neverReadyImage = "registry.example/not-ready:1"
)

// workloads changes the workloads of one namespace at random from a seed, one change after another.
type workloads struct {
	kube kubernetes.Interface
	rng  *rand.Rand
	all  []*workload
}

// createAll creates the namespace and the workloads.
func (u *workloads) createAll(ctx context.Context) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workloadsNamespace}}
	if _, err := u.kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", workloadsNamespace, err)
	}
	for i := range workloadsCount {
		kinds := []string{"deployment", "deployment", "statefulset", "daemonset"}
		w := &workload{name: fmt.Sprintf("web-%d", i), kind: kinds[i%len(kinds)], image: firstImage}
		u.all = append(u.all, w)
		if err := u.create(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// run changes workloads until the load ends. After a third of the changes it waits until the workload is complete.
func (u *workloads) run(ctx, load context.Context) error {
	for load.Err() == nil {
		w := u.all[u.rng.IntN(len(u.all))]
		if err := u.act(ctx, w); err != nil {
			return err
		}
		if u.rng.IntN(3) == 0 && w.canComplete() {
			if err := u.awaitComplete(ctx, w); err != nil {
				return err
			}
		}
		if retry.Sleep(load, upTo(u.rng, longestRest)) != nil {
			return nil //nolint:nilerr // the load has ended
		}
	}
	return nil
}

func (u *workloads) act(ctx context.Context, w *workload) error {
	switch choice := u.rng.IntN(24); {
	case choice < 9:
		return u.edit(ctx, w, fmt.Sprintf("registry.example/shop:%d", u.rng.IntN(6)))
	case choice < 11 && w.kind == "deployment":
		return u.edit(ctx, w, neverReadyImage)
	case choice < 13:
		annotation := fmt.Sprintf(`{"kubectl.kubernetes.io/restartedAt":%q}`, time.Now().Format(time.RFC3339Nano))
		return u.patch(ctx, w, `{"spec":{"template":{"metadata":{"annotations":`+annotation+`}}}}`)
	case choice < 15 && w.kind != "daemonset":
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+u.rng.IntN(4)))
	case choice < 17 && w.kind != "daemonset": // as an autoscaler does
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+u.rng.IntN(4)), "scale")
	case choice < 18 && w.kind == "deployment":
		w.paused = !w.paused
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"paused":%t}}`, w.paused))
	case choice < 19:
		return u.edit(ctx, w, firstImage)
	case choice < 21 && w.kind == "deployment" && w.canComplete():
		return u.deleteSet(ctx, w)
	case choice < 21 && w.kind == "statefulset":
		w.partition = u.rng.IntN(3)
		return u.patch(ctx, w, fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}`, w.partition))
	case choice < 22 && w.kind != "daemonset":
		// A DaemonSet's controller may wait five minutes for a pod that was deleted before it saw it.
		return u.deletePods(ctx, w)
	default:
		if err := u.delete(ctx, w); err != nil {
			return err
		}
		return u.create(ctx, w)
	}
}

// finish lets every workload complete, and deletes the first.
func (u *workloads) finish(ctx context.Context) error {
	for _, w := range u.all {
		var patches []string
		if w.paused {
			patches = append(patches, `{"spec":{"paused":false}}`)
		}
		if w.partition > 0 {
			patches = append(patches, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
		}
		for _, patch := range patches {
			if err := u.patch(ctx, w, patch); err != nil {
				return err
			}
		}
		if w.image == neverReadyImage {
			if err := u.edit(ctx, w, lastImage); err != nil {
				return err
			}
		}
	}
	for _, w := range u.all {
		if err := u.awaitComplete(ctx, w); err != nil {
			return err
		}
	}
	return u.delete(ctx, u.all[0])
}

func allEqual(want int32, counts ...int32) bool {
	return !slices.ContainsFunc(counts, func(n int32) bool { return n != want })
}
