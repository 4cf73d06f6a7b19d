package e2e_test

import (
	"context"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// leave puts into the cluster what a workspace would be that nobody knows any more, after the pattern of one that is known. The handle has no project.
func (s *system) leave(pattern *workspace, name string) *workspace {
	s.t.Helper()
	ctx, t := s.t.Context(), s.t
	w := &workspace{t: t, s: s, id: uuid.NewString(), name: name, namespace: "ws-" + strconv.FormatInt(s.agent, 10) + "-" + name, agent: s.agent}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: w.labels()}
	}
	_, err := s.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace, Labels: w.labels()}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.kube.CoreV1().ServiceAccounts(w.namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta(name)}, metav1.CreateOptions{})
	require.NoError(t, err)
	claim := pattern.claim()
	_, err = s.kube.CoreV1().PersistentVolumeClaims(w.namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: meta(name + "-data"), Spec: corev1.PersistentVolumeClaimSpec{AccessModes: claim.Spec.AccessModes, Resources: claim.Spec.Resources},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	d := &appsv1.Deployment{ObjectMeta: meta(name), Spec: *pattern.deployment().Spec.DeepCopy()}
	d.Annotations = map[string]string{desiredRevision: "17"}
	d.Spec.Selector.MatchLabels = map[string]string{labelWorkspace: w.id}
	d.Spec.Template.Labels = w.labels()
	d.Spec.Template.Spec.ServiceAccountName = name
	for i := range d.Spec.Template.Spec.Volumes {
		if held := d.Spec.Template.Spec.Volumes[i].PersistentVolumeClaim; held != nil {
			held.ClaimName = name + "-data"
		}
	}
	_, err = s.kube.AppsV1().Deployments(w.namespace).Create(ctx, d, metav1.CreateOptions{})
	require.NoError(t, err)
	return w
}

// told counts the events of one kind of a workspace that belongs to no project.
func (w *workspace) told(event string) int {
	w.t.Helper()
	stream, err := w.s.js.Stream(w.t.Context(), topology.StreamWorkspaces)
	require.NoError(w.t, err)
	info, err := stream.Info(w.t.Context(), jetstream.WithSubjectFilter(stack.Cell.Workspace(0, w.id, event)))
	require.NoError(w.t, err)
	total := 0
	for _, n := range info.State.Subjects {
		total += int(n)
	}
	return total
}

func (w *workspace) untilTold(event string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.told(event) > 0 }, patience, clusterTick, "it is told that it is %s", event)
}

// orphan is how the API shows it; nil when it does not.
func (w *workspace) orphan() *statev1.Orphan {
	w.t.Helper()
	listed := printed(w.t, w.s.commandLine().ok("ws", "orphans", "--agent", strconv.FormatInt(w.agent, 10), "-o", "json"), &statev1.ListOrphansResponse{})
	for _, o := range listed.GetOrphans() {
		if o.GetReference().GetName() == w.name {
			return o
		}
	}
	return nil
}

func (w *workspace) place() string {
	return strconv.FormatInt(w.agent, 10) + "/" + w.namespace + "/" + w.name
}

func orphanIsLeftAloneAndAdopted(s *system) {
	t := s.t
	w := s.leave(s.createRunning("pattern-adopted"), "adopted")
	w.untilTold("orphaned")
	w.awaitPod()
	before := w.deployment()
	s.resync()
	s.resync() // which has everything applied again, too
	require.Equal(t, 1, w.told("orphaned"), "once")
	left := w.deployment()
	require.Equal(t, before.UID, left.UID)
	require.Equal(t, before.Generation, left.Generation)
	require.Equal(t, before.Annotations[desiredRevision], left.Annotations[desiredRevision])
	for _, entry := range left.ManagedFields {
		require.NotEqual(t, "lockstep", entry.Manager, "it is not touched")
	}
	shown := w.orphan()
	require.Equal(t, w.id, shown.GetWorkspaceId())
	require.Equal(t, goodImage, shown.GetImage())

	cli := s.commandLine()
	made := printed(t, cli.ok("ws", "adopt", w.place(), "-o", "json"), &statev1.AdoptOrphanResponse{}).GetWorkspace()
	require.Equal(t, w.id, made.GetId())
	w.project = made.GetProjectId()
	running := w.untilRunning()
	require.Equal(t, "adopted", running.GetName())
	require.EqualValues(t, 18, running.GetDesiredRevision())
	require.Equal(t, goodImage, running.GetSpec().GetImage())
	require.Equal(t, before.UID, w.deployment().UID, "it is the same one")
	require.Nil(t, w.orphan())
	w.stop()
	w.untilStopped()
	w.start()
	w.untilRunning()
	require.Equal(t, 1, w.told("orphaned"))
}

func orphanIsDeletedOnPurpose(s *system) {
	t := s.t
	w := s.leave(s.createRunning("pattern-deleted"), "deleted")
	w.untilTold("orphaned")
	require.Contains(t, s.commandLine().ok("ws", "delete-orphan", w.place(), "--yes"), "being deleted")
	w.untilTold("orphan_deleted")
	w.requireGone()
	require.Nil(t, w.orphan())
	require.Equal(t, 1, w.told("orphaned"))
	require.Equal(t, 1, w.told("orphan_deleted"))

	// What the dispatcher was told goes away by itself.
	desired, err := s.js.Stream(t.Context(), topology.StreamDesired)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		last, err := desired.GetLastMsgForSubject(t.Context(), stack.Cell.Desired(w.agent, w.id))
		return err == nil && last.Header.Get("Nats-TTL") == time.Hour.String()
	}, patience, clusterTick)
	_, err = s.kube.CoreV1().Namespaces().Get(t.Context(), w.namespace, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

// awaitPod waits until the workspace's pod runs.
func (w *workspace) awaitPod() {
	w.t.Helper()
	w.awaitCluster("its pod runs", func(ctx context.Context) (bool, error) {
		list, err := w.s.kube.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1 && list.Items[0].Status.Phase == corev1.PodRunning, err
	})
}
