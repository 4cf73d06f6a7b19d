package telemetry

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
)

// newPropagator carries W3C trace context and no baggage, because the baggage of callers would be stored in every
// stream.
func newPropagator() propagation.TextMapPropagator { return propagation.TraceContext{} }

// Inject writes the trace of ctx into the headers of a message, as traceparent and tracestate. It
// writes nothing when ctx holds no span.
func Inject(ctx context.Context, header nats.Header) {
	newPropagator().Inject(ctx, headerCarrier(header))
}

// Extract returns ctx with the trace that the headers of a message carry; ctx itself when they
// carry none or it is malformed.
func Extract(ctx context.Context, header nats.Header) context.Context {
	return newPropagator().Extract(ctx, headerCarrier(header))
}

// headerCarrier writes lower-case names, as CloudEvents and W3C do, and reads any case: NATS keeps
// names as they were sent.
type headerCarrier nats.Header

func (c headerCarrier) Get(key string) string {
	if values := c[key]; len(values) > 0 {
		return values[0]
	}
	for name, values := range c {
		if len(values) > 0 && strings.EqualFold(name, key) {
			return values[0]
		}
	}
	return ""
}

func (c headerCarrier) Set(key, value string) { c[key] = []string{value} }

func (c headerCarrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for name := range c {
		keys = append(keys, name)
	}
	return keys
}
