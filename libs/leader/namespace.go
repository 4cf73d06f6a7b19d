package leader

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
)

// podSecurity is the label of the level that all pods of a namespace must have. Agents have the strictest one.
const podSecurity = "pod-security.kubernetes.io/enforce"

// EnsureNamespace creates the namespace of an agent when it does not exist. It does not change an existing one.
func EnsureNamespace(ctx context.Context, client coreclient.NamespacesGetter, name string) error {
	_, err := client.Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read namespace %s: %w", name, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{podSecurity: "restricted"},
	}}
	_, err = client.Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}
