package sink

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
)

// consumerName returns the name of a sink's durable consumers on DEPLOYS and on SINKS.
func consumerName(sink string) string { return topology.SinkConsumerName(sink) }

// streamConsumer is a stream with the sink's consumer on it.
type streamConsumer struct {
	stream   string
	consumer jetstream.Consumer
}

// openConsumers creates the sink's consumers, DEPLOYS first, and resets them to the first unfinished fact. So the
// server redelivers the facts that an earlier replica had received, immediately and in order. The database has the
// facts after it that are finished.
func (w *worker) openConsumers(ctx context.Context) ([]streamConsumer, error) {
	deploys, err := w.openDeploys(ctx)
	if err != nil {
		return nil, err
	}
	requested, err := w.openConsumer(ctx, topology.StreamSinks)
	if err != nil {
		return nil, err
	}
	if _, err := w.set.cfg.JetStream.ResetConsumer(ctx, topology.StreamSinks, consumerName(w.name)); err != nil {
		return nil, fmt.Errorf("reset the consumer of sink %s on %s: %w", w.name, topology.StreamSinks, err)
	}
	return []streamConsumer{{topology.StreamDeploys, deploys}, {topology.StreamSinks, requested}}, nil
}

func (w *worker) openDeploys(ctx context.Context) (jetstream.Consumer, error) {
	js := w.set.cfg.JetStream
	stream, err := js.Stream(ctx, topology.StreamDeploys)
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", topology.StreamDeploys, err)
	}
	last := stream.CachedInfo().State.LastSeq
	first := last + 1
	if w.cfg.Backfill {
		first = 1
	}
	next, err := w.store.next(ctx, w.name, first)
	if err != nil {
		return nil, err
	}
	consumer, err := w.openConsumer(ctx, topology.StreamDeploys)
	if err != nil {
		return nil, err
	}
	// A new consumer has no acknowledged message. Its position comes from the database.
	if floor := consumer.CachedInfo().AckFloor.Stream; floor > 0 {
		next = floor + 1
	}
	// A stream that was restored from an older copy ends earlier. Its next facts are delivered again, and the database has
	// those that are finished.
	next = max(min(next, last+1), 1)
	if _, err := js.ResetConsumerToSequence(ctx, topology.StreamDeploys, consumerName(w.name), next); err != nil {
		return nil, fmt.Errorf("reset the consumer of sink %s on %s: %w", w.name, topology.StreamDeploys, err)
	}
	return consumer, nil
}

func (w *worker) openConsumer(ctx context.Context, stream string) (jetstream.Consumer, error) {
	consumer, err := w.set.cfg.Consumers.Sink(ctx, topology.SinkConsumer{
		Name: w.name, Stream: stream, AckWait: w.set.cfg.AckWait, MaxPending: w.cfg.MaxPending,
	})
	if err != nil {
		return nil, fmt.Errorf("create the consumer of sink %s on %s: %w", w.name, stream, err)
	}
	return consumer, nil
}
