// Package kubeclient holds what every program does to reach a Kubernetes API server.
package kubeclient

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Load reads a context of a kubeconfig file, the current one when contextName is empty. Without a
// file it uses the ServiceAccount of the pod that the program runs in.
func Load(kubeconfig, contextName string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no kubeconfig is configured and the program does not run in a pod: %w", err)
		}
		return cfg, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: contextName}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return cfg, nil
}

// EnsureNamespace creates the namespace when it does not exist. It does not change an existing one.
func EnsureNamespace(
	ctx context.Context, client coreclient.NamespacesGetter, name string, labels map[string]string,
) error {
	_, err := client.Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read namespace %s: %w", name, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	_, err = client.Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// LogWarnings logs the warnings of the API server, for rest.Config.WarningHandlerWithContext.
func LogWarnings(logger *slog.Logger) rest.WarningHandlerWithContext { return warningLogger{logger} }

type warningLogger struct{ logger *slog.Logger }

func (w warningLogger) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	if text != "" {
		w.logger.DebugContext(ctx, "API server sent a warning",
			slog.String("warning", strings.ToValidUTF8(text, "\uFFFD")))
	}
}
