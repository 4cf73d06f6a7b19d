package kube_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/kube"
)

func TestTerminateEndsWhenAllObjectsAreGone(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	leader := b.leader(t, admin(t))
	w := b.with(b.workspace(), 1, configMap("files", "1"), volume("data", "1Gi"), deployment(1))
	_, err := leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	b.setFinalizers(t, w, `["example.test/stuck"]`)

	w = b.terminated(w, 2)
	want := []desired.Reference{
		{ApiVersion: "v1", Kind: "ConfigMap", Namespace: w.Namespace, Name: "files"},
		desired.NamespaceReference(w.Namespace),
	}
	require.Eventually(t, func() bool {
		remaining, err := leader.Terminate(ctx, w)
		require.NoError(t, err)
		require.Subset(t, remaining.Objects, want)
		return len(remaining.Objects) == len(want)
	}, timeout, tick, "only what is stuck remains in the end")

	// Another leader continues and returns the remaining objects.
	leader = b.leader(t, admin(t))
	remaining, err := leader.Terminate(ctx, w)
	require.NoError(t, err)
	require.Equal(t, want, remaining.Objects)
	require.Equal(t, kube.ReasonFinalizersRemain, remaining.Reason)
	require.Equal(t, "ConfigMap "+w.Namespace+"/files waits for its finalizer example.test/stuck, "+
		"which another program must remove", remaining.Message)

	b.setFinalizers(t, w, "null")
	terminate(t, leader, w)
	_, err = b.admin.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
	require.Empty(t, b.inventory(t, w))

	// A repeated Terminate succeeds.
	w.Revision = 3
	for _, leader := range []*kube.Cluster{leader, b.leader(t, admin(t))} {
		remaining, err = leader.Terminate(ctx, w)
		require.NoError(t, err)
		require.Empty(t, remaining)
	}
	require.Empty(t, b.inventory(t, w))
}

// requestCounter is a transport that counts the GET requests of a path.
type requestCounter struct {
	next  http.RoundTripper
	path  string
	count atomic.Int64
}

func (c *requestCounter) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet && request.URL.Path == c.path {
		c.count.Add(1)
	}
	return c.next.RoundTrip(request)
}

// WrappedRoundTripper lets idle connections be closed.
func (c *requestCounter) WrappedRoundTripper() http.RoundTripper { return c.next }

func TestTerminateReadsTheNamespaceOnce(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	w := b.with(b.workspace(), 1, configMap("files", "1"))
	_, err := b.leader(t, admin(t)).Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	b.setFinalizers(t, w, `["example.test/stuck"]`)

	counter := &requestCounter{path: "/api/v1/namespaces/" + w.Namespace}
	cfg := admin(t)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		counter.next = next
		return counter
	})
	leader := b.leader(t, cfg)
	for polls := int64(1); polls <= 2; polls++ {
		remaining, err := leader.Terminate(ctx, b.terminated(w, 2))
		require.NoError(t, err)
		require.NotEmpty(t, remaining.Objects)
		require.Equal(t, polls, counter.count.Load())
	}
	b.setFinalizers(t, w, "null")
	terminate(t, leader, b.terminated(w, 2))
}

func TestTerminateFindsTheNamespaceWithoutAnInventory(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	leader := b.leader(t, admin(t))
	w := b.with(b.workspace(), 1, configMap("files", "1"))
	_, err := leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	require.NoError(
		t,
		b.admin.CoreV1().ConfigMaps(kube.AgentNamespace(b.agent)).Delete(ctx, "workspace-"+w.ID, metav1.DeleteOptions{}),
	)
	terminate(t, leader, b.terminated(w, 2))
	_, err = b.admin.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

func TestTerminateLeavesAForeignNamespaceAlone(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	ctx := testContext(t)
	leader := b.leader(t, admin(t))
	w := b.with(b.workspace(), 1, configMap("files", "1"), configMap("taken", "1"))
	_, err := leader.Apply(ctx, w, b.secrets)
	require.NoError(t, err)
	unlabel := []byte(`{"metadata":{"labels":{"lockstep.dev/agent":"999999"}}}`)
	_, err = b.admin.CoreV1().Namespaces().Patch(ctx, w.Namespace, types.MergePatchType, unlabel, metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = b.admin.CoreV1().ConfigMaps(
		w.Namespace,
	).Patch(ctx, "taken", types.MergePatchType, unlabel, metav1.PatchOptions{})
	require.NoError(t, err)

	terminate(t, b.leader(t, admin(t)), b.terminated(w, 2))
	namespace, err := b.admin.CoreV1().Namespaces().Get(ctx, w.Namespace, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.NamespaceActive, namespace.Status.Phase)
	_, err = b.admin.CoreV1().ConfigMaps(w.Namespace).Get(ctx, "taken", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = b.admin.CoreV1().ConfigMaps(w.Namespace).Get(ctx, "files", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}
