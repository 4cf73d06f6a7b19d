package kube

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Home is the agent's own namespace: leases and inventories.
func Home(agent int64) string { return "lockstep-agent-" + strconv.FormatInt(agent, 10) }

// EnsureHome makes the agent's own namespace where it is missing.
func (c *Client) EnsureHome(ctx context.Context, agent int64) error {
	name := Home(agent)
	if _, err := c.core.Namespaces().Get(ctx, name, metav1.GetOptions{}); err == nil {
		return nil
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("look at the agent's namespace %s: %w", name, err)
	}
	_, err := c.core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the agent's namespace %s: %w", name, err)
	}
	return nil
}
