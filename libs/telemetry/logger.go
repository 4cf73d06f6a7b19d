package telemetry

import (
	"context"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"lockstep.internal/libs/logkey"
)

// NewLogger writes entries to out, as JSON or as text, each with the trace_id and span_id of its
// context where there is a span. The service's name is on every entry.
func NewLogger(cfg Config, service string, out io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: level(cfg.LogLevel)}
	var handler slog.Handler = slog.NewJSONHandler(out, options)
	if cfg.LogFormat == "text" {
		handler = slog.NewTextHandler(out, options)
	}
	return slog.New(&traceHandler{handler: handler}).With(slog.String(logkey.Service, service))
}

func level(name string) slog.Level {
	switch name {
	case "debug":
		return slog.LevelDebug
	case "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// traceHandler adds the trace ids at the top level of an entry. It records the WithGroup and WithAttrs calls after
// the first group and applies them after the ids.
type traceHandler struct {
	handler slog.Handler                      // with everything up to the first group
	grouped []func(slog.Handler) slog.Handler // from the first group on
}

func (h *traceHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.handler.Enabled(ctx, level)
}

func (h *traceHandler) Handle(ctx context.Context, record slog.Record) error {
	handler := h.handler
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		handler = handler.WithAttrs([]slog.Attr{
			slog.String(logkey.TraceID, span.TraceID().String()),
			slog.String(logkey.SpanID, span.SpanID().String()),
		})
	}
	for _, step := range h.grouped {
		handler = step(handler)
	}
	return handler.Handle(ctx, record) //nolint:wrapcheck // a pass-through
}

func (h *traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(h.grouped) == 0 {
		return &traceHandler{handler: h.handler.WithAttrs(attrs)}
	}
	return h.then(func(handler slog.Handler) slog.Handler { return handler.WithAttrs(attrs) })
}

func (h *traceHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return h.then(func(handler slog.Handler) slog.Handler { return handler.WithGroup(name) })
}

func (h *traceHandler) then(step func(slog.Handler) slog.Handler) slog.Handler {
	grouped := make([]func(slog.Handler) slog.Handler, len(h.grouped), len(h.grouped)+1)
	copy(grouped, h.grouped)
	return &traceHandler{handler: h.handler, grouped: append(grouped, step)}
}
