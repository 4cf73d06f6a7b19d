// Package telemetry creates a service's logger, tracer and metrics registry. Log entries carry
// their trace; traces are exported by OTLP. Nothing global is set, so several services can run in
// one process.
//
// Traces are exported only with telemetry.otlp_endpoint, OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT. Without one, spans still have ids, so the log entries of a request can be
// found. If the collector is down, spans are dropped and the service is not affected: export errors are logged at
// most once a minute, and the queue is bounded.
//
// The trace travels in NATS headers as W3C traceparent and tracestate (Inject, Extract).
package telemetry
