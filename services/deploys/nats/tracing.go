package nats

import (
	"context"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/telemetry"
)

// maxLinks bounds the links of a span.
const maxLinks = 32

// trace begins the span of a batch, with links to what it consists of.
func (i *Ingest) trace(ctx context.Context, batch []cursor.Message[Observed]) (context.Context, trace.Span) {
	if i.Tracer == nil {
		return ctx, noop.Span{}
	}
	var links []trace.Link
	seen := map[string]struct{}{}
	for m := range batch {
		parent := batch[m].Value.Trace
		if _, there := seen[parent]; there || parent == "" {
			continue
		}
		if seen[parent] = struct{}{}; len(seen) > maxLinks {
			break
		}
		cause := telemetry.Extract(context.Background(), nats.Header{event.TraceParent: []string{parent}})
		links = append(links, trace.Link{SpanContext: trace.SpanContextFromContext(cause)})
	}
	//nolint:spancheck // who asks for it ends it
	return i.Tracer.Start(ctx, "conclude and tell facts", trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links...),
		trace.WithAttributes(attribute.Int("messages", len(batch))))
}
