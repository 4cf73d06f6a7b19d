package sink

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
)

// consumerName is the durable consumer of a sink, on DEPLOYS and on SINKS.
func consumerName(sink string) string { return "sink-" + sink }

// supply is a stream that a sink is fed by.
type supply struct {
	stream   string
	consumer jetstream.Consumer
}

// open makes or finds the sink's consumers, DEPLOYS first, and sets them back to the first fact that is not done with: so that what an earlier replica
// had taken comes again at once, and in order. What it was done with above that is known from the database.
func (p *pump) open(ctx context.Context) ([]supply, error) {
	deploys, err := p.openDeploys(ctx)
	if err != nil {
		return nil, err
	}
	again, err := p.consumer(ctx, topology.StreamSinks, p.set.cfg.Cell.SinkAll(p.name))
	if err != nil {
		return nil, err
	}
	if _, err := p.set.cfg.JetStream.ResetConsumer(ctx, topology.StreamSinks, consumerName(p.name)); err != nil {
		return nil, fmt.Errorf("set the consumer of sink %s on %s back: %w", p.name, topology.StreamSinks, err)
	}
	return []supply{{topology.StreamDeploys, deploys}, {topology.StreamSinks, again}}, nil
}

func (p *pump) openDeploys(ctx context.Context) (jetstream.Consumer, error) {
	js := p.set.cfg.JetStream
	stream, err := js.Stream(ctx, topology.StreamDeploys)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", topology.StreamDeploys, err)
	}
	last := stream.CachedInfo().State.LastSeq
	first := last + 1
	if p.cfg.Backfill {
		first = 1
	}
	next, err := p.store.next(ctx, p.name, first)
	if err != nil {
		return nil, err
	}
	consumer, err := p.consumer(ctx, topology.StreamDeploys, p.set.cfg.Cell.All(topology.FamilyDeploy))
	if err != nil {
		return nil, err
	}
	// A consumer that was just made stands before the first message: then the database knows better.
	if floor := consumer.CachedInfo().AckFloor.Stream; floor > 0 {
		next = floor + 1
	}
	// A stream that was restored from an older copy ends earlier; what it lacks comes again, and is known.
	if _, err := js.ResetConsumerToSequence(ctx, topology.StreamDeploys, consumerName(p.name), max(min(next, last+1), 1)); err != nil {
		return nil, fmt.Errorf("set the consumer of sink %s on %s back: %w", p.name, topology.StreamDeploys, err)
	}
	return consumer, nil
}

func (p *pump) consumer(ctx context.Context, stream, filter string) (jetstream.Consumer, error) {
	consumer, err := p.set.cfg.JetStream.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable:       consumerName(p.name),
		FilterSubject: filter,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       p.set.cfg.AckWait,
		MaxAckPending: p.cfg.Waiting,
		MaxDeliver:    -1,
	})
	if err != nil {
		return nil, fmt.Errorf("consumer of sink %s on %s: %w", p.name, stream, err)
	}
	return consumer, nil
}
