package kube

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/kubeclient"
	"lockstep.internal/libs/leader"
)

// Config of the connection to the cluster.
type Config struct {
	Kubeconfig string  `yaml:"kubeconfig" help:"kubeconfig file of the cluster; empty = the ServiceAccount of this pod"`
	Context    string  `yaml:"context" help:"context of the kubeconfig; empty = its current one"`
	QPS        float64 `yaml:"qps" help:"requests per second to the API server"`
	Burst      int     `yaml:"burst" help:"requests that may exceed qps at once"`
}

// DefaultConfig uses the ServiceAccount of the pod and at most 50 requests per second.
func DefaultConfig() Config { return Config{QPS: 50, Burst: 100} }

// Validate checks the limits.
func (c Config) Validate() []error {
	var errs []error
	if c.Context != "" && c.Kubeconfig == "" {
		errs = append(errs, config.Invalid("context", "has no effect without kubeconfig"))
	}
	if c.QPS <= 0 {
		errs = append(errs, config.Invalid("qps", "%v is not above zero", c.QPS))
	}
	if c.Burst < 1 {
		errs = append(errs, config.Invalid("burst", "%d is less than 1", c.Burst))
	}
	return errs
}

const (
	protobuf = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// Every cluster has this namespace. Its UID identifies the cluster.
	systemNamespace = metav1.NamespaceSystem
)

// Client is the watcher's client of a Kubernetes API server. It is safe for concurrent use.
type Client struct {
	typed  kubernetes.Interface
	meta   metadata.Interface
	pages  *pageReader
	logger *slog.Logger
}

// NewClient makes a client without connecting. An error is a mistake in the configuration.
func NewClient(cfg Config, userAgent string, logger *slog.Logger) (*Client, error) {
	rest, err := kubeclient.Load(cfg.Kubeconfig, cfg.Context)
	if err != nil {
		return nil, fmt.Errorf("kubernetes configuration: %w", err)
	}
	rest.UserAgent = userAgent
	rest.QPS, rest.Burst = float32(cfg.QPS), cfg.Burst
	rest.ContentType, rest.AcceptContentTypes = runtime.ContentTypeProtobuf, protobuf
	rest.WarningHandlerWithContext = kubeclient.LogWarnings(logger)
	typed, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	meta, err := metadata.NewForConfig(rest)
	if err != nil {
		return nil, fmt.Errorf("kubernetes metadata client: %w", err)
	}
	return &Client{typed: typed, meta: meta, pages: newPageReader(), logger: logger}, nil
}

// Check is a health check. It fails when the API server is not ready.
func (c *Client) Check(ctx context.Context) error {
	return kubeclient.CheckReady(ctx, c.typed.Discovery().RESTClient())
}

// ClusterUID identifies the cluster. A recreated cluster has another one.
func (c *Client) ClusterUID(ctx context.Context) (string, error) {
	namespace, err := c.typed.CoreV1().Namespaces().Get(ctx, systemNamespace, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read namespace %s: %w", systemNamespace, err)
	}
	return string(namespace.UID), nil
}

// EnsureNamespace creates the namespace if it is missing. It does not change an existing one.
func (c *Client) EnsureNamespace(ctx context.Context, name string) error {
	return leader.EnsureNamespace(ctx, c.typed.CoreV1(), name)
}

// withLogger makes the client library write to the service's log, information as debug messages.
func (c *Client) withLogger(ctx context.Context) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(quiet{c.logger.Handler()}))
}

// quiet logs information at debug level.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return q.Handler.Enabled(ctx, quieter(level))
}

func (q quiet) Handle(ctx context.Context, record slog.Record) error {
	record.Level = quieter(record.Level)
	return q.Handler.Handle(ctx, record) //nolint:wrapcheck // a pass-through
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }
func (q quiet) WithGroup(name string) slog.Handler       { return quiet{q.Handler.WithGroup(name)} }

func quieter(level slog.Level) slog.Level {
	if level >= slog.LevelWarn {
		return level
	}
	return min(level, slog.LevelDebug)
}
