package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"k8s.io/apimachinery/pkg/util/net"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"lockstep.internal/libs/kubeclient"
)

// Client is the client of the API server. Of a workspace's objects it reads only the metadata, and the StorageClass of
// its volume, so the values of Secrets never come back. It needs no permission to get Secrets.
type Client struct {
	http   *http.Client
	core   coreclient.CoreV1Interface
	leases coordinationclient.CoordinationV1Interface
	meta   metadata.Interface
}

// NewClient returns a client without a rate limit: the API server has one, and the worker pool bounds
// the concurrency. It does not connect yet.
func NewClient(cfg *rest.Config, logger *slog.Logger) (*Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	cfg.UserAgent = "lockstep-dispatcher"
	cfg.WarningHandlerWithContext = kubeclient.LogWarnings(logger)
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	core, err := coreclient.NewForConfigAndClient(cfg, shared)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	leases, err := coordinationclient.NewForConfigAndClient(cfg, shared)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	meta, err := metadata.NewForConfigAndClient(cfg, shared)
	if err != nil {
		return nil, fmt.Errorf("create the Kubernetes client: %w", err)
	}
	return &Client{http: shared, core: core, leases: leases, meta: meta}, nil
}

// Check is a health check. It fails when the API server is not ready.
func (c *Client) Check(ctx context.Context) error {
	return kubeclient.CheckReady(ctx, c.core.RESTClient())
}

// Leases returns the client of Leases, for the leader election.
func (c *Client) Leases() coordinationclient.LeasesGetter { return c.leases }

// Close closes idle connections.
func (c *Client) Close() { net.CloseIdleConnectionsFor(c.http.Transport) }
