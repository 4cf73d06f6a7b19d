package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// workload is one workload and its last settings.
type workload struct {
	name, kind string
	image      string
	paused     bool
	partition  int // of a StatefulSet
}

// canComplete reports whether the workload's rollout can complete.
func (w *workload) canComplete() bool {
	return !w.paused && w.partition == 0 && w.image != neverReadyImage
}

func (u *workloads) create(ctx context.Context, w *workload) error {
	meta := metav1.ObjectMeta{Name: w.name}
	labels := map[string]string{"app": w.name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	pods := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: w.image}}},
	}
	err := u.retry(ctx, "create "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			_, err = u.kube.AppsV1().Deployments(workloadsNamespace).Create(ctx, &appsv1.Deployment{
				ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		case "statefulset":
			_, err = u.kube.AppsV1().StatefulSets(workloadsNamespace).Create(ctx, &appsv1.StatefulSet{
				ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2)), Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		default:
			_, err = u.kube.AppsV1().DaemonSets(workloadsNamespace).Create(ctx, &appsv1.DaemonSet{
				ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		}
		if apierrors.IsAlreadyExists(err) {
			return nil // an earlier attempt created it
		}
		return err //nolint:wrapcheck // await names the operation
	})
	w.paused, w.partition = false, 0
	return err
}

func (u *workloads) patch(ctx context.Context, w *workload, patch string, subresources ...string) error {
	kind := types.StrategicMergePatchType
	if len(subresources) > 0 {
		kind = types.MergePatchType
	}
	data, options := []byte(patch), metav1.PatchOptions{}
	return u.retry(ctx, "change "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			_, err = u.kube.AppsV1().Deployments(workloadsNamespace).Patch(ctx, w.name, kind, data, options, subresources...)
		case "statefulset":
			_, err = u.kube.AppsV1().StatefulSets(workloadsNamespace).Patch(ctx, w.name, kind, data, options, subresources...)
		default:
			_, err = u.kube.AppsV1().DaemonSets(workloadsNamespace).Patch(ctx, w.name, kind, data, options)
		}
		return err //nolint:wrapcheck // await names the operation
	})
}

func (u *workloads) delete(ctx context.Context, w *workload) error {
	return u.retry(ctx, "delete "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			err = u.kube.AppsV1().Deployments(workloadsNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		case "statefulset":
			err = u.kube.AppsV1().StatefulSets(workloadsNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		default:
			err = u.kube.AppsV1().DaemonSets(workloadsNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err //nolint:wrapcheck // await names the operation
	})
}

// deleteSet deletes the newest ReplicaSet of a complete Deployment and waits for its replacement.
func (u *workloads) deleteSet(ctx context.Context, w *workload) error {
	if err := u.awaitComplete(ctx, w); err != nil {
		return err
	}
	sets := u.kube.AppsV1().ReplicaSets(workloadsNamespace)
	var list *appsv1.ReplicaSetList
	err := u.retry(ctx, "list the ReplicaSets of "+w.name, func(ctx context.Context) (err error) {
		list, err = sets.List(ctx, metav1.ListOptions{LabelSelector: "app=" + w.name})
		return err //nolint:wrapcheck // await names the operation
	})
	if err != nil {
		return err
	}
	for _, set := range list.Items {
		if *set.Spec.Replicas == 0 {
			continue
		}
		err := u.retry(ctx, "delete ReplicaSet "+set.Name, func(ctx context.Context) error {
			err := sets.Delete(ctx, set.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &set.UID}})
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				return nil // an earlier attempt deleted it
			}
			return err //nolint:wrapcheck // await names the operation
		})
		if err != nil {
			return err
		}
		err = u.await(ctx, "wait for another ReplicaSet "+set.Name, func(ctx context.Context) (bool, error) {
			now, err := sets.Get(ctx, set.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			replaced := err == nil && now.UID != set.UID && now.Status.AvailableReplicas == *now.Spec.Replicas
			return replaced, err //nolint:wrapcheck // await names the operation
		})
		if err != nil {
			return err
		}
	}
	return u.awaitComplete(ctx, w)
}

// deletePods deletes all pods of a workload, which is no rollout.
func (u *workloads) deletePods(ctx context.Context, w *workload) error {
	return u.retry(ctx, "delete the pods of "+w.name, func(ctx context.Context) error {
		pods := metav1.ListOptions{LabelSelector: "app=" + w.name}
		return u.kube.CoreV1().Pods(workloadsNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, pods)
	})
}

func (u *workloads) edit(ctx context.Context, w *workload, image string) error {
	w.image = image
	template := fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":%q}]}}`, image)
	return u.patch(ctx, w, `{"spec":{"template":`+template+`}}`)
}

// awaitComplete waits until the newest version of a workload is complete.
func (u *workloads) awaitComplete(ctx context.Context, w *workload) error {
	what := fmt.Sprintf("wait for %s %s with %s", w.kind, w.name, w.image)
	err := u.await(ctx, what, func(ctx context.Context) (bool, error) { return u.isComplete(ctx, w) })
	if err != nil {
		err = fmt.Errorf("%w; its pods: %s", err, u.pods(ctx, w))
	}
	return err
}

// pods describes the pods of a workload for a failure message.
func (u *workloads) pods(ctx context.Context, w *workload) string {
	ctx = context.WithoutCancel(ctx)
	list, err := u.kube.CoreV1().Pods(workloadsNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + w.name})
	if err != nil {
		return err.Error()
	}
	var lines []string
	for i := range list.Items {
		p := &list.Items[i]
		lines = append(lines, fmt.Sprintf("%s on %q is %s, deleted at %s, conditions %v",
			p.Name, p.Spec.NodeName, p.Status.Phase, p.DeletionTimestamp, p.Status.Conditions))
	}
	return strings.Join(lines, "; ")
}

// retry repeats an operation until the API server responds. Without a response it is unknown whether the
// operation took effect.
func (u *workloads) retry(ctx context.Context, what string, do func(ctx context.Context) error) error {
	return u.await(ctx, what, func(ctx context.Context) (bool, error) {
		err := do(ctx)
		return err == nil, err
	})
}

// isRetryable reports whether the operation may or may not have taken effect despite the error.
func isRetryable(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || status.Status().Code >= http.StatusInternalServerError ||
		apierrors.IsTooManyRequests(err)
}

func (u *workloads) await(ctx context.Context, what string, done func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		met, err := done(ctx)
		switch {
		case err != nil && !isRetryable(err):
			return fmt.Errorf("%s: %w", what, err)
		case err == nil && met:
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), err))
		}
	}
}

// isComplete reports whether the newest version of a workload is complete.
//
//nolint:wrapcheck // awaitComplete names the operation
func (u *workloads) isComplete(ctx context.Context, w *workload) (bool, error) {
	switch w.kind {
	case "deployment":
		o, err := u.kube.AppsV1().Deployments(workloadsNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation &&
			allEqual(*o.Spec.Replicas, o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas), err
	case "statefulset":
		o, err := u.kube.AppsV1().StatefulSets(workloadsNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation &&
			o.Status.CurrentRevision == o.Status.UpdateRevision &&
			allEqual(*o.Spec.Replicas, o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas), err
	default:
		o, err := u.kube.AppsV1().DaemonSets(workloadsNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation && o.Status.DesiredNumberScheduled > 0 &&
			allEqual(o.Status.DesiredNumberScheduled, o.Status.UpdatedNumberScheduled, o.Status.NumberAvailable), err
	}
}
