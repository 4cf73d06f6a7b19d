// Package telemetry makes what a service shows of itself: a slog logger whose entries carry the
// trace they belong to, OTLP traces, and a Prometheus registry of its own. Everything is handed
// over; nothing global is set, so that several services live in one process without mixing.
//
// Traces are exported only when telemetry.otlp_endpoint or the standard OTEL_EXPORTER_OTLP_ENDPOINT
// or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is given; otherwise spans still carry ids, so that log
// entries of one request can be told, and go nowhere. A collector that is down costs spans, never
// the service: export errors are logged, at most one a minute, and the queue is bounded.
//
// The trace travels in NATS headers as W3C traceparent and tracestate (Inject, Extract).
package telemetry
