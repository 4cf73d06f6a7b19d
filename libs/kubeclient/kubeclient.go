// Package kubeclient holds what every program does to reach a Kubernetes API server.
package kubeclient

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"lockstep.internal/libs/logkey"
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

// CheckReady fails when the API server is not ready or cannot be reached before ctx ends.
func CheckReady(ctx context.Context, client rest.Interface) error {
	if err := client.Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return fmt.Errorf("the Kubernetes API server is not ready: %w", err)
	}
	return nil
}

// LogWarnings logs the warnings of the API server, for rest.Config.WarningHandlerWithContext.
func LogWarnings(logger *slog.Logger) rest.WarningHandlerWithContext { return warningLogger{logger} }

type warningLogger struct{ logger *slog.Logger }

func (w warningLogger) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	if text != "" {
		w.logger.DebugContext(ctx, "API server sent a warning",
			slog.String(logkey.Warning, strings.ToValidUTF8(text, "\uFFFD")))
	}
}
