package chaos_test

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

	"lockstep.internal/e2e/fixture"
)

// chaosWorkload is one workload and its last settings.
type chaosWorkload struct {
	name, kind string
	image      string
	paused     bool
	partition  int // of a StatefulSet
}

// canComplete reports whether the workload's rollout can complete.
func (w *chaosWorkload) canComplete() bool {
	return !w.paused && w.partition == 0 && w.image != fixture.NeverReadyImage
}

func (u *rolloutChaos) create(ctx context.Context, w *chaosWorkload) error {
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
			_, err = u.Kube.AppsV1().Deployments(chaosNamespace).Create(ctx, &appsv1.Deployment{
				ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		case "statefulset":
			_, err = u.Kube.AppsV1().StatefulSets(chaosNamespace).Create(ctx, &appsv1.StatefulSet{
				ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2)), Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		default:
			_, err = u.Kube.AppsV1().DaemonSets(chaosNamespace).Create(ctx, &appsv1.DaemonSet{
				ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: pods},
			}, metav1.CreateOptions{})
		}
		if apierrors.IsAlreadyExists(err) {
			return nil // an earlier attempt created it
		}
		return err
	})
	w.paused, w.partition = false, 0
	return err
}

func (u *rolloutChaos) patch(ctx context.Context, w *chaosWorkload, patch string, subresources ...string) error {
	kind := types.StrategicMergePatchType
	if len(subresources) > 0 {
		kind = types.MergePatchType
	}
	data, options := []byte(patch), metav1.PatchOptions{}
	return u.retry(ctx, "change "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			_, err = u.Kube.AppsV1().Deployments(chaosNamespace).Patch(ctx, w.name, kind, data, options, subresources...)
		case "statefulset":
			_, err = u.Kube.AppsV1().StatefulSets(chaosNamespace).Patch(ctx, w.name, kind, data, options, subresources...)
		default:
			_, err = u.Kube.AppsV1().DaemonSets(chaosNamespace).Patch(ctx, w.name, kind, data, options)
		}
		return err
	})
}

func (u *rolloutChaos) delete(ctx context.Context, w *chaosWorkload) error {
	return u.retry(ctx, "delete "+w.kind+" "+w.name, func(ctx context.Context) (err error) {
		switch w.kind {
		case "deployment":
			err = u.Kube.AppsV1().Deployments(chaosNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		case "statefulset":
			err = u.Kube.AppsV1().StatefulSets(chaosNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		default:
			err = u.Kube.AppsV1().DaemonSets(chaosNamespace).Delete(ctx, w.name, metav1.DeleteOptions{})
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// deleteSet deletes the newest ReplicaSet of a complete Deployment and waits for its replacement.
func (u *rolloutChaos) deleteSet(ctx context.Context, w *chaosWorkload) error {
	if err := u.awaitComplete(ctx, w); err != nil {
		return err
	}
	sets := u.Kube.AppsV1().ReplicaSets(chaosNamespace)
	var list *appsv1.ReplicaSetList
	err := u.retry(ctx, "list the ReplicaSets of "+w.name, func(ctx context.Context) (err error) {
		list, err = sets.List(ctx, metav1.ListOptions{LabelSelector: "app=" + w.name})
		return err
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
			return err
		})
		if err != nil {
			return err
		}
		err = u.await(ctx, "wait for another ReplicaSet "+set.Name, func(ctx context.Context) (bool, error) {
			now, err := sets.Get(ctx, set.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return err == nil && now.UID != set.UID && now.Status.AvailableReplicas == *now.Spec.Replicas, err
		})
		if err != nil {
			return err
		}
	}
	return u.awaitComplete(ctx, w)
}

// deletePods deletes all pods of a workload, which is no rollout.
func (u *rolloutChaos) deletePods(ctx context.Context, w *chaosWorkload) error {
	return u.retry(ctx, "delete the pods of "+w.name, func(ctx context.Context) error {
		pods := metav1.ListOptions{LabelSelector: "app=" + w.name}
		return u.Kube.CoreV1().Pods(chaosNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, pods)
	})
}

func (u *rolloutChaos) edit(ctx context.Context, w *chaosWorkload, image string) error {
	w.image = image
	template := fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":%q}]}}`, image)
	return u.patch(ctx, w, `{"spec":{"template":`+template+`}}`)
}

// awaitComplete waits until the newest version of a workload is complete.
func (u *rolloutChaos) awaitComplete(ctx context.Context, w *chaosWorkload) error {
	what := fmt.Sprintf("wait for %s %s with %s", w.kind, w.name, w.image)
	err := u.await(ctx, what, func(ctx context.Context) (bool, error) { return u.isComplete(ctx, w) })
	if err != nil {
		err = fmt.Errorf("%w; its pods: %s", err, u.pods(w))
	}
	return err
}

// pods describes the pods of a workload for a failure message.
func (u *rolloutChaos) pods(w *chaosWorkload) string {
	ctx := context.WithoutCancel(u.T.Context())
	list, err := u.Kube.CoreV1().Pods(chaosNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + w.name})
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
func (u *rolloutChaos) retry(ctx context.Context, what string, do func(ctx context.Context) error) error {
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

func (u *rolloutChaos) await(ctx context.Context, what string, done func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, fixture.Timeout)
	defer cancel()
	ticker := time.NewTicker(fixture.PollInterval)
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

func (u *rolloutChaos) isComplete(ctx context.Context, w *chaosWorkload) (bool, error) {
	switch w.kind {
	case "deployment":
		o, err := u.Kube.AppsV1().Deployments(chaosNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation &&
			fixture.AllEqual(*o.Spec.Replicas, o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas), err
	case "statefulset":
		o, err := u.Kube.AppsV1().StatefulSets(chaosNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation &&
			o.Status.CurrentRevision == o.Status.UpdateRevision &&
			fixture.AllEqual(*o.Spec.Replicas, o.Status.Replicas, o.Status.UpdatedReplicas, o.Status.AvailableReplicas), err
	default:
		o, err := u.Kube.AppsV1().DaemonSets(chaosNamespace).Get(ctx, w.name, metav1.GetOptions{})
		return err == nil && o.Status.ObservedGeneration >= o.Generation && o.Status.DesiredNumberScheduled > 0 &&
			fixture.AllEqual(o.Status.DesiredNumberScheduled, o.Status.UpdatedNumberScheduled, o.Status.NumberAvailable), err
	}
}
