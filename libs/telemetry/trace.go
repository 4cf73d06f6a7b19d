package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"lockstep.internal/libs/logkey"
)

func newProvider(
	ctx context.Context, cfg Config, options Options, logger *slog.Logger,
) (*sdktrace.TracerProvider, error) {
	// OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME win over what we know.
	described, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "lockstep-"+options.Service),
			attribute.String("service.version", options.Version)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("create the trace resource: %w", err)
	}
	providerOptions := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(described),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.SampleRatio))),
	}
	exporter := options.Exporter
	if exporter == nil {
		if exporter, err = newExporter(ctx, cfg, options); err != nil {
			return nil, err
		}
	}
	if exporter != nil {
		quiet := &quietExporter{SpanExporter: exporter, logger: logger}
		providerOptions = append(providerOptions, sdktrace.WithBatcher(quiet))
	}
	return sdktrace.NewTracerProvider(providerOptions...), nil
}

// newExporter returns nil when no collector is configured.
func newExporter(ctx context.Context, cfg Config, options Options) (sdktrace.SpanExporter, error) {
	fromEnv := options.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") + options.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")
	if options.Getenv("OTEL_SDK_DISABLED") == "true" || (cfg.OTLPEndpoint == "" && fromEnv == "") {
		return nil, nil //nolint:nilnil // no exporter is no error
	}
	protocol := cfg.OTLPProtocol
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol == "" {
			protocol = options.Getenv(name)
		}
	}
	switch protocol {
	case "", "grpc":
		var settings []otlptracegrpc.Option
		if cfg.OTLPEndpoint != "" {
			settings = append(settings, otlptracegrpc.WithEndpointURL(cfg.OTLPEndpoint))
		}
		exporter, err := otlptracegrpc.New(ctx, settings...)
		if err != nil {
			return nil, fmt.Errorf("make the OTLP exporter: %w", err)
		}
		return exporter, nil
	case "http/protobuf":
		var settings []otlptracehttp.Option
		if cfg.OTLPEndpoint != "" {
			settings = append(settings, otlptracehttp.WithEndpointURL(cfg.OTLPEndpoint))
		}
		exporter, err := otlptracehttp.New(ctx, settings...)
		if err != nil {
			return nil, fmt.Errorf("make the OTLP exporter: %w", err)
		}
		return exporter, nil
	default:
		return nil, fmt.Errorf("OTLP protocol %q is neither grpc nor http/protobuf", protocol)
	}
}

// quietExporter keeps export errors from the SDK's global error handler. It logs them, at most one a minute, and
// returns nil.
type quietExporter struct {
	sdktrace.SpanExporter

	logger *slog.Logger

	mu     sync.Mutex
	logged time.Time
	lost   int
}

func (e *quietExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost += len(spans)
	if time.Since(e.logged) >= time.Minute {
		e.logger.WarnContext(
			ctx, "trace export failed, spans dropped", slog.Int(logkey.Lost, e.lost), logkey.Error(err),
		)
		e.logged, e.lost = time.Now(), 0
	}
	return nil
}
