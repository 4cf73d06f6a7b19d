package workspaces_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
)

// leaveOrphan creates the objects of a workspace that the state service does not know, modelled on
// a known one. The returned handle has no project.
func leaveOrphan(s *fixture.System, pattern *fixture.Workspace, name string) *fixture.Workspace {
	s.T.Helper()
	ctx, t := s.T.Context(), s.T
	w := &fixture.Workspace{
		T:         t,
		System:    s,
		ID:        uuid.NewString(),
		Name:      name,
		Namespace: "ws-" + strconv.FormatInt(s.AgentID, 10) + "-" + name,
		AgentID:   s.AgentID,
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: w.Namespace, Name: name, Labels: w.Labels()}
	}
	_, err := s.Kube.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace, Labels: w.Labels()}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = s.Kube.CoreV1().ServiceAccounts(w.Namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta(name)},
		metav1.CreateOptions{})
	require.NoError(t, err)
	claim := pattern.Claim()
	_, err = s.Kube.CoreV1().PersistentVolumeClaims(w.Namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: meta(name + "-data"),
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: claim.Spec.AccessModes, Resources: claim.Spec.Resources},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	d := &appsv1.Deployment{ObjectMeta: meta(name), Spec: *pattern.Deployment().Spec.DeepCopy()}
	d.Annotations = map[string]string{fixture.DesiredRevisionAnnotation: "17"}
	d.Spec.Selector.MatchLabels = map[string]string{fixture.LabelWorkspace: w.ID}
	d.Spec.Template.Labels = w.Labels()
	d.Spec.Template.Spec.ServiceAccountName = name
	for i := range d.Spec.Template.Spec.Volumes {
		if held := d.Spec.Template.Spec.Volumes[i].PersistentVolumeClaim; held != nil {
			held.ClaimName = name + "-data"
		}
	}
	_, err = s.Kube.AppsV1().Deployments(w.Namespace).Create(ctx, d, metav1.CreateOptions{})
	require.NoError(t, err)
	return w
}

// orphanEvents counts the workspace's events of one type. The workspace belongs to no project.
func orphanEvents(w *fixture.Workspace, event string) int {
	w.T.Helper()
	stream, err := w.System.JS.Stream(w.T.Context(), topology.StreamWorkspaces)
	require.NoError(w.T, err)
	info, err := stream.Info(w.T.Context(), jetstream.WithSubjectFilter(stack.Cell.Workspace(0, w.ID, event)))
	require.NoError(w.T, err)
	total := 0
	for _, n := range info.State.Subjects {
		total += int(n)
	}
	return total
}

func awaitOrphanEvents(w *fixture.Workspace, event string) {
	w.T.Helper()
	require.Eventually(w.T, func() bool { return orphanEvents(w, event) > 0 }, fixture.Timeout, fixture.PollInterval,
		"the orphan is reported as %s", event)
}

// orphan returns the orphan as the API lists it, or nil.
func orphan(w *fixture.Workspace) *statev1.Orphan {
	w.T.Helper()
	listed := fixture.ParseOutput(
		w.T,
		w.System.CLI().OK("ws", "orphans", "--agent", strconv.FormatInt(w.AgentID, 10), "-o", "json"),
		&statev1.ListOrphansResponse{},
	)
	for _, o := range listed.GetOrphans() {
		if o.GetReference().GetName() == w.Name {
			return o
		}
	}
	return nil
}

func orphanReference(w *fixture.Workspace) string {
	return strconv.FormatInt(w.AgentID, 10) + "/" + w.Namespace + "/" + w.Name
}

func TestOrphansAdopted(t *testing.T) {
	s := shared.Parallel(t)

	w := leaveOrphan(s, s.CreateRunning("pattern-adopted"), "adopted")
	awaitOrphanEvents(w, "orphaned")
	awaitPod(w)
	before := w.Deployment()
	s.Resync()
	s.Resync() // which has everything applied again, too
	require.Equal(t, 1, orphanEvents(w, "orphaned"), "once")
	left := w.Deployment()
	require.Equal(t, before.UID, left.UID)
	require.Equal(t, before.Generation, left.Generation)
	require.Equal(t, before.Annotations[fixture.DesiredRevisionAnnotation],
		left.Annotations[fixture.DesiredRevisionAnnotation])
	for _, entry := range left.ManagedFields {
		require.NotEqual(t, "lockstep", entry.Manager, "it is not touched")
	}
	shown := orphan(w)
	require.Equal(t, w.ID, shown.GetWorkspaceId())
	require.Equal(t, fixture.GoodImage, shown.GetImage())

	cli := s.CLI()
	made := fixture.ParseOutput(t, cli.OK("ws", "adopt", orphanReference(w), "-o", "json"),
		&statev1.AdoptOrphanResponse{}).GetWorkspace()
	require.Equal(t, w.ID, made.GetId())
	w.ProjectID = made.GetProjectId()
	running := w.AwaitRunning()
	require.Equal(t, "adopted", running.GetName())
	require.EqualValues(t, 18, running.GetDesiredRevision())
	require.Equal(t, fixture.GoodImage, running.GetSpec().GetImage())
	require.Equal(t, before.UID, w.Deployment().UID, "it is the same one")
	require.Nil(t, orphan(w))
	w.Stop()
	w.AwaitStopped()
	w.Start()
	w.AwaitRunning()
	require.Equal(t, 1, orphanEvents(w, "orphaned"))
}

func TestOrphansDeleted(t *testing.T) {
	s := shared.Parallel(t)

	w := leaveOrphan(s, s.CreateRunning("pattern-deleted"), "deleted")
	awaitOrphanEvents(w, "orphaned")
	require.Contains(t, s.CLI().OK("ws", "delete-orphan", orphanReference(w), "--yes"), "deleting")
	awaitOrphanEvents(w, "orphan_deleted")
	w.RequireGone()
	require.Nil(t, orphan(w))
	require.Equal(t, 1, orphanEvents(w, "orphaned"))
	require.Equal(t, 1, orphanEvents(w, "orphan_deleted"))

	// The dispatcher's own message disappears without further action.
	desired, err := s.JS.Stream(t.Context(), topology.StreamDesired)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		last, err := desired.GetLastMsgForSubject(t.Context(), stack.Cell.Desired(w.AgentID, w.ID))
		return err == nil && last.Header.Get("Nats-TTL") == time.Hour.String()
	}, fixture.Timeout, fixture.PollInterval)
	_, err = s.Kube.CoreV1().Namespaces().Get(t.Context(), w.Namespace, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

// awaitPod waits until the workspace's pod runs.
func awaitPod(w *fixture.Workspace) {
	w.T.Helper()
	w.AwaitCluster("its pod runs", func(ctx context.Context) (bool, error) {
		list, err := w.System.Kube.CoreV1().Pods(w.Namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1 && list.Items[0].Status.Phase == corev1.PodRunning, err
	})
}
