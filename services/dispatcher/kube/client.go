package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/util/net"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// LoadConfig reads how to reach the cluster: from the kubeconfig file, or from the pod the program runs in where none is named.
func LoadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		cfg, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no kubeconfig is given and this is no pod of a cluster: %w", err)
		}
		return cfg, nil
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return cfg, nil
}

// Client reaches the API server. Objects of workspaces are only seen by their metadata, so that values of Secrets never come back.
type Client struct {
	http   *http.Client
	core   coreclient.CoreV1Interface
	leases coordinationclient.CoordinationV1Interface
	meta   metadata.Interface
}

// NewClient makes a client without a rate limit of its own: the API server has one, and a queue in front keeps order.
// Nothing is reached for yet.
func NewClient(cfg *rest.Config, logger *slog.Logger) (*Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cfg.UserAgent = "lockstep-dispatcher"
	cfg.WarningHandlerWithContext = warnings{logger}
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	core, err := coreclient.NewForConfigAndClient(cfg, shared)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	leases, err := coordinationclient.NewForConfigAndClient(cfg, shared)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	meta, err := metadata.NewForConfigAndClient(cfg, shared)
	if err != nil {
		return nil, fmt.Errorf("client of the cluster: %w", err)
	}
	return &Client{http: shared, core: core, leases: leases, meta: meta}, nil
}

// Check says why the API server cannot be used, nil when it can.
func (c *Client) Check(ctx context.Context) error {
	if err := c.core.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return fmt.Errorf("the cluster's API server is not ready: %w", err)
	}
	return nil
}

// Close closes the connections that are idle.
func (c *Client) Close() { net.CloseIdleConnectionsFor(c.http.Transport) }

// warnings logs what the API server warns of.
type warnings struct{ logger *slog.Logger }

func (w warnings) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	if text != "" {
		w.logger.DebugContext(ctx, "the cluster warns", slog.String("warning", strings.ToValidUTF8(text, "\uFFFD")))
	}
}
