package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"

	"connectrpc.com/connect"
	"connectrpc.com/otelconnect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Options identify the service. All fields but Service are optional.
type Options struct {
	Service string // name of the service: state
	Version string
	Out     io.Writer                // receives the log; defaults to the configuration's
	Getenv  func(name string) string // reads the standard OTEL_ variables; defaults to os.Getenv
	// Exporter replaces the configured exporter, for tests.
	Exporter sdktrace.SpanExporter
}

// Telemetry contains the logger, the tracer and the metrics registry of a service. The fields are never nil and
// safe for concurrent use.
type Telemetry struct {
	Logger     *slog.Logger
	Traces     trace.TracerProvider
	Tracer     trace.Tracer // of the service itself
	Propagator propagation.TextMapPropagator
	Metrics    *prometheus.Registry

	provider *sdktrace.TracerProvider
}

// Open creates the telemetry of one service. It does not connect, and fails only for an invalid configuration. Call
// Close to flush the last spans.
func Open(ctx context.Context, cfg Config, options Options) (*Telemetry, error) {
	if options.Out == nil {
		options.Out = cfg.Out
	}
	if options.Out == nil {
		options.Out = os.Stderr
	}
	if options.Getenv == nil {
		options.Getenv = os.Getenv
	}
	logger := NewLogger(cfg, options.Service, options.Out)
	provider, err := newProvider(ctx, cfg, options, logger)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	metrics, err := newRegistry(options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("telemetry: %w", err), provider.Shutdown(ctx))
	}
	return &Telemetry{
		Logger:     logger,
		Traces:     provider,
		Tracer:     provider.Tracer("lockstep.internal/services/" + options.Service),
		Propagator: newPropagator(),
		Metrics:    metrics,
		provider:   provider,
	}, nil
}

// Close flushes queued spans until ctx ends. It is for the end of Main, with a context that outlives the service's
// own.
func (t *Telemetry) Close(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("close telemetry: %w", err)
	}
	return nil
}

// HTTP traces the requests that a handler serves; a span is named by the pattern that matched.
func (t *Telemetry) HTTP(next http.Handler) http.Handler {
	return otelhttp.NewHandler(next, "http",
		otelhttp.WithTracerProvider(t.Traces),
		otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelhttp.WithPropagators(t.Propagator),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string {
			if r.Pattern != "" {
				return r.Pattern
			}
			return r.Method
		}))
}

// Transport traces the requests that a client sends and passes the trace on.
func (t *Telemetry) Transport(base http.RoundTripper) http.RoundTripper {
	return otelhttp.NewTransport(base,
		otelhttp.WithTracerProvider(t.Traces),
		otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelhttp.WithPropagators(t.Propagator))
}

// Connect traces calls, on handlers and clients. Handlers continue the caller's trace: use it only for trusted
// callers.
func (t *Telemetry) Connect() (connect.Interceptor, error) {
	interceptor, err := otelconnect.NewInterceptor(
		otelconnect.WithTracerProvider(t.Traces),
		otelconnect.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelconnect.WithPropagator(t.Propagator),
		otelconnect.WithTrustRemote(),
	)
	if err != nil {
		return nil, fmt.Errorf("telemetry: make the Connect interceptor: %w", err)
	}
	return interceptor, nil
}

func newRegistry(options Options) (*prometheus.Registry, error) {
	registry := prometheus.NewPedanticRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lockstep_build_info",
		Help: "Always 1; the labels contain the version.",
		ConstLabels: prometheus.Labels{
			"service": options.Service, "version": options.Version, "go_version": runtime.Version(),
		},
	})
	build.Set(1)
	for _, collector := range []prometheus.Collector{
		build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("register a collector: %w", err)
		}
	}
	return registry, nil
}
