package kubelet

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// NodeName returns the name of the i-th node, counted from 1.
func NodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// RegisterNodes creates the nodes 1 to count that do not exist yet.
func RegisterNodes(ctx context.Context, client kubernetes.Interface, count int) error {
	for i := range count {
		name := NodeName(i + 1)
		_, err := client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				v1.LabelHostname:           name,
				v1.LabelOSStable:           "linux",
				v1.LabelArchStable:         "amd64",
				v1.LabelInstanceTypeStable: "kubelab",
				StateLabel:                 StateRunning,
			},
		}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("register %s: %w", name, err)
		}
	}
	return nil
}

// SetNodeState starts or stops the kubelet of a node. A stopped kubelet sends no heartbeats. The node becomes
// NotReady after the grace period.
func SetNodeState(ctx context.Context, client kubernetes.Interface, node, state string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, StateLabel, state)
	_, err := client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("set the kubelet of %s to %s: %w", node, state, err)
	}
	return nil
}

var errNotReady = errors.New("not ready")

// CheckNodes returns nil when every running node is ready, has no taint of new and lost nodes, and reports port.
func CheckNodes(ctx context.Context, client kubernetes.Interface, port int32) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: StateLabel + "=" + StateRunning})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		for _, taint := range node.Spec.Taints {
			if taint.Key == v1.TaintNodeNotReady || taint.Key == v1.TaintNodeUnreachable {
				return fmt.Errorf("%s: %w: taint %s", node.Name, errNotReady, taint.Key)
			}
		}
		ready := false
		for _, c := range node.Status.Conditions {
			ready = ready || (c.Type == v1.NodeReady && c.Status == v1.ConditionTrue)
		}
		if !ready || node.Status.DaemonEndpoints.KubeletEndpoint.Port != port {
			return fmt.Errorf("%s: %w", node.Name, errNotReady)
		}
	}
	return nil
}
