package e2e_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestStoppedNodeBecomesNotReadyAndRecovers(t *testing.T) {
	t.Parallel()
	p := start(t, "--nodes=1", "--node-grace=8s")
	c := namespaceIn(t, p.client(t), nil)
	deploy(t, c, "app", 1, podSpec("nginx:1"))
	awaitAvailable(t, c, "app", 1)

	node(t, p, "stop")
	eventually(t, "the node is unreachable", func(ctx context.Context) bool {
		n, err := c.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
		return err == nil && readiness(n) == v1.ConditionUnknown && len(n.Spec.Taints) > 0
	})
	eventually(t, "its pod counts as not ready", func(context.Context) bool {
		for _, condition := range podsOf(t, c, "app")[0].Status.Conditions {
			if condition.Type == v1.PodReady {
				return condition.Status == v1.ConditionFalse
			}
		}
		return false
	})
	scale(t, c, "app", 0)
	eventually(t, "its pod is being deleted",
		func(context.Context) bool { return podsOf(t, c, "app")[0].DeletionTimestamp != nil })
	require.Never(t, func() bool { return len(podsOf(t, c, "app")) == 0 }, settle, tick, "no kubelet deletes it")

	node(t, p, "start")
	eventually(t, "the node is ready and free of taints", func(ctx context.Context) bool {
		n, err := c.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
		return err == nil && readiness(n) == v1.ConditionTrue && len(n.Spec.Taints) == 0
	})
	eventually(t, "its pod is deleted", func(context.Context) bool { return len(podsOf(t, c, "app")) == 0 })
	scale(t, c, "app", 2)
	awaitAvailable(t, c, "app", 2)
}

func node(t *testing.T, p *process, command string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "node", command, "node-1", "--kubeconfig="+p.info.Kubeconfig).
		CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func readiness(n *v1.Node) v1.ConditionStatus {
	for _, condition := range n.Status.Conditions {
		if condition.Type == v1.NodeReady {
			return condition.Status
		}
	}
	return ""
}

func requireUnauthorized(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	_, err = client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsUnauthorized(err), "%v", err)
}
