package kube_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/services/dispatcher/kube"
)

func TestApplyCreatesAndRecordsEverything(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	leader := b.leader(t, admin(t))
	w := b.with(b.workspace(), 1, configMap("files", "1"), volume("data", "1Gi"), service("w"), deployment(1))
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "d1"}}

	applied, err := leader.Apply(testContext(t), w, b.secrets)
	require.NoError(t, err)
	require.Equal(t, w.References(), applied.Objects)
	require.Empty(t, applied.Pruned)
	require.ElementsMatch(t, []string{"files", "data", "w"}, b.existing(t, w))
	for _, reference := range w.References() {
		require.Contains(t, b.inventory(t, w), `"kind":"`+reference.Kind+`","name":"`+reference.Name+`"`)
	}

	namespace, err := b.admin.CoreV1().Namespaces().Get(testContext(t), w.Namespace, metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, desired.Owner{Agent: b.agent, Workspace: w.ID}.Owns(namespace.Labels))
	require.Equal(t, "restricted", namespace.Labels["pod-security.kubernetes.io/enforce"])

	again, err := leader.Apply(testContext(t), w, b.secrets)
	require.NoError(t, err)
	require.Equal(t, applied, again)
	again, err = b.leader(t, admin(t)).Apply(testContext(t), w, b.secrets)
	require.NoError(t, err)
	require.Equal(t, applied, again)
	require.Equal(t, 1, b.secrets.count(), "the digest is the same")
}

func TestApplyPrunesWhatIsNoLongerDesired(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	leader := b.leader(t, admin(t))
	w := b.with(b.workspace(), 1, configMap("old", "1"), configMap("kept", "1"), volume("data", "1Gi"), deployment(1))
	_, err := leader.Apply(testContext(t), w, b.secrets)
	require.NoError(t, err)

	// Stopped keeps the volume.
	w = b.with(w, 2, configMap("kept", "2"), volume("data", "1Gi"), deployment(0))
	w.Target = events.DesiredTargetStopped
	applied, err := leader.Apply(testContext(t), w, b.secrets)
	require.NoError(t, err)
	require.Equal(
		t, []desired.Reference{{ApiVersion: "v1", Kind: "ConfigMap", Namespace: w.Namespace, Name: "old"}},
		applied.Pruned,
	)
	require.ElementsMatch(t, []string{"kept", "data", "w"}, b.existing(t, w))
	require.NotContains(t, b.inventory(t, w), "old")

	// The volume is pruned only when no manifest contains it, also by a new leader.
	w = b.with(w, 3, configMap("kept", "3"), deployment(0))
	applied, err = b.leader(t, admin(t)).Apply(testContext(t), w, b.secrets)
	require.NoError(t, err)
	require.Equal(
		t, []desired.Reference{{ApiVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: w.Namespace, Name: "data"}},
		applied.Pruned,
	)
	require.Eventually(t, func() bool { return len(b.existing(t, w)) == 2 }, timeout, tick)
}

func TestApplyDoesNotChangeForeignObjects(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	leader := b.leader(t, admin(t))

	w := b.with(b.workspace(), 1, configMap("files", "mine"))
	_, err := b.admin.CoreV1().Namespaces().Create(
		ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace}}, metav1.CreateOptions{},
	)
	require.NoError(t, err)
	_, err = leader.Apply(ctx, w, b.secrets)
	require.Equal(t, failure.Conflict, reason(t, err))
	namespace, err := b.admin.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
	require.NoError(t, err)
	require.NotContains(t, namespace.Labels, desired.LabelAgent)

	// A foreign object in the workspace's namespace, before and after the workspace had an object of that name.
	w = b.with(b.workspace(), 1, configMap("other", "mine"))
	_, err = leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "files"}, Data: map[string]string{"key": "theirs"}}
	_, err = b.admin.CoreV1().ConfigMaps(w.Namespace).Create(ctx, foreign, metav1.CreateOptions{})
	require.NoError(t, err)
	w = b.with(w, 2, configMap("files", "mine"), configMap("other", "mine"))
	_, err = leader.Apply(ctx, w, b.secrets)
	require.Equal(t, failure.Conflict, reason(t, err))

	require.NoError(t, b.admin.CoreV1().ConfigMaps(w.Namespace).Delete(ctx, "other", metav1.DeleteOptions{}))
	foreign.Name = "other"
	_, err = b.admin.CoreV1().ConfigMaps(w.Namespace).Create(ctx, foreign, metav1.CreateOptions{})
	require.NoError(t, err)
	w = b.with(w, 3, configMap("other", "mine"))
	_, err = leader.Apply(ctx, w, b.secrets)
	require.Equal(t, failure.Conflict, reason(t, err))

	// It is not pruned, although the inventory lists its name.
	w = b.with(w, 4, configMap("third", "mine"))
	applied, err := leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	require.Empty(t, applied.Pruned)
	for _, name := range []string{"files", "other"} {
		object, err := b.admin.CoreV1().ConfigMaps(w.Namespace).Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "theirs", object.Data["key"])
	}
}

func TestApplyRecreatesDeletedObjects(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	leader := b.leader(t, admin(t))
	w := b.with(b.workspace(), 1, configMap("files", "1"), configMap("more", "1"))
	w.Secrets = []events.SecretReference{{Name: "variables", Digest: "d1"}}
	_, err := leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)

	require.NoError(t, b.admin.CoreV1().ConfigMaps(w.Namespace).Delete(ctx, "files", metav1.DeleteOptions{}))
	require.NoError(t, b.admin.CoreV1().Secrets(w.Namespace).Delete(ctx, "variables", metav1.DeleteOptions{}))
	w.Revision = 2
	_, err = leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"files", "more"}, b.existing(t, w))

	require.Equal(t, 2, b.secrets.count())
}

func TestApplyWaitsForANamespaceThatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	client := newClient(t, admin(t))
	require.NoError(t, client.EnsureAgentNamespace(ctx, b.agent))
	gone := make(chan string, 10)
	namespaces := kube.NewNamespaces(client, b.agent, func(workspace string) { gone <- workspace })
	runNamespaces(t, namespaces)
	leader := kube.NewCluster(client, b.policy, namespaces)
	w := b.with(b.workspace(), 1, configMap("files", "1"))
	_, err := leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)

	b.setFinalizers(t, w, `["example.test/stuck"]`)
	require.NoError(t, b.admin.CoreV1().Namespaces().Delete(ctx, w.Namespace, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		w.Revision++
		_, err = leader.Apply(ctx, w, b.secrets)
		return err != nil
	}, timeout, tick)
	require.Equal(t, failure.NamespaceTerminating, reason(t, err))
	_, err = b.leader(t, admin(t)).Apply(ctx, w, b.secrets)
	require.Equal(t, failure.NamespaceTerminating, reason(t, err))

	b.setFinalizers(t, w, "null")
	select {
	case workspace := <-gone:
		require.Equal(t, w.ID, workspace)
	case <-ctx.Done():
		require.Fail(t, "the deletion of the namespace was not reported")
	}
	// The API server may still have the deleted namespace in its cache.
	require.Eventually(t, func() bool {
		_, err = leader.Apply(ctx, w, b.secrets)
		return err == nil || reason(t, err) != failure.NamespaceTerminating
	}, timeout, tick)
	require.NoError(t, err)
	require.Equal(t, []string{"files"}, b.existing(t, w))
}

func TestApplyRejectsALowerRevision(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	w := b.with(b.workspace(), 1, configMap("files", "1"))
	older, newer := b.leader(t, admin(t)), b.leader(t, admin(t))
	_, err := older.Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	_, err = newer.Apply(ctx, b.with(w, 5, configMap("files", "5")), b.secrets)
	require.NoError(t, err)

	// The old leader has revision 1 in its cache. It may neither write revision 4 nor apply revision 1 again.
	for _, revision := range []int64{4, 1} {
		_, err = older.Apply(ctx, b.with(w, revision, configMap("files", "old")), b.secrets)
		require.Equal(t, failure.Superseded, reason(t, err))
		_, err = older.Terminate(ctx, b.terminated(w, revision))
		require.Equal(t, failure.Superseded, reason(t, err))
	}
	object, err := b.admin.CoreV1().ConfigMaps(w.Namespace).Get(ctx, "files", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "5", object.Data["key"])
}

func TestSecretsAreRequestedWhenTheirDigestDiffers(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	leader := b.leader(t, admin(t))
	w := b.with(b.workspace(), 1, configMap("files", "1"))
	for i, digest := range []string{"d1", "d1", "d2"} {
		w.Revision = int64(i + 1)
		w.Secrets = []events.SecretReference{{Name: "variables", Digest: digest}}
		_, err := leader.Apply(ctx, w, b.secrets)
		require.NoError(t, err)
		secret, err := b.admin.CoreV1().Secrets(w.Namespace).Get(ctx, "variables", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, map[string][]byte{"TOKEN": []byte("value of " + digest)}, secret.Data)
		require.Equal(t, digest, secret.Annotations[desired.AnnotationSecretDigest])
		require.True(t, desired.Owner{Agent: b.agent, Workspace: w.ID}.Owns(secret.Labels))
	}
	require.Equal(t, 2, b.secrets.count())

	w.Revision, w.Secrets = 4, nil
	applied, err := leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	require.Equal(t, []desired.Reference{desired.SecretReference(w.Namespace, "variables")}, applied.Pruned)
}
