package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/tools/detection"
	"lockstep.internal/tools/replay"
)

const (
	replayWorkloads = 1000
	replayRollouts  = 8
)

// replayFamily measures how fast history is gone through.
func replayFamily() Family {
	return Family{
		Name:  "replay",
		About: "A stretch of OBSERVED that lies on the stream, as `lockstep replay --through deploys` goes through it: nothing is published, stored or printed.",
		Specs: []Spec{{
			Name: "events_per_s", Unit: "1/s", About: "observations taken through the detection of rollouts and environments, in order",
			Baseline: "bare consuming of the same messages, of which no more than their place on the stream is looked at: the least that has to be done to go through history, and less than it takes to know what it says", Aim: Aim{Of: ofRatio, AtLeast: 0.6},
		}},
		Run: replayFigures,
	}
}

func replayFigures(ctx context.Context, size Size) (measured Measured, err error) {
	parts := &bed{}
	defer parts.close(ctx, &err)
	conn, err := parts.nats()
	if err != nil {
		return nil, err
	}
	js, err := parts.streams(ctx, conn)
	if err != nil {
		return nil, err
	}
	last, err := newStage(js, size.of(replayWorkloads)).play(ctx, replayRollouts)
	if err != nil {
		return nil, err
	}
	ours, bare, err := takeTurns(ctx, size.For,
		func(ctx context.Context, _ int) (float64, error) { return detected(ctx, js, last) },
		func(ctx context.Context, _ int) (float64, error) { return consumed(ctx, js, last) })
	if err != nil {
		return nil, err
	}
	m := beside(median(ours), median(bare))
	m.Note = fmt.Sprintf("%d messages of %d workloads", last, size.of(replayWorkloads))
	return Measured{"events_per_s": m}, nil
}

// detected goes through the detection.
func detected(ctx context.Context, js jetstream.JetStream, count uint64) (float64, error) {
	d := detection.New(benchCell, environment.Rules{})
	facts, taken := 0, uint64(0)
	began := time.Now()
	err := d.Replay(ctx, js, benchCell, replay.Options{Subject: topology.FamilyObserved + ".>"}, func(_ *detection.Message, detect func() ([]events.DeployFact, error)) error {
		found, err := detect()
		facts += len(found)
		taken++
		return err
	})
	took := time.Since(began)
	if err == nil && (facts == 0 || taken != count) {
		err = fmt.Errorf("%d facts of %d messages out of %d", facts, taken, count)
	}
	if err != nil {
		return 0, fmt.Errorf("replay: %w", err)
	}
	return float64(count) / took.Seconds(), nil
}

// consumed takes the messages and leaves it at that.
func consumed(ctx context.Context, js jetstream.JetStream, count uint64) (float64, error) {
	stream, err := js.Stream(ctx, topology.StreamObserved)
	if err != nil {
		return 0, fmt.Errorf("look at stream %s: %w", topology.StreamObserved, err)
	}
	began := time.Now()
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Minute})
	if err != nil {
		return 0, fmt.Errorf("consume: %w", err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return 0, fmt.Errorf("consume: %w", err)
	}
	defer messages.Stop()
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	for range count {
		m, err := messages.Next()
		if err != nil {
			return 0, errors.Join(fmt.Errorf("consume: %w", err), context.Cause(ctx))
		}
		if _, err := m.Metadata(); err != nil {
			return 0, fmt.Errorf("consume: %w", err)
		}
	}
	return float64(count) / time.Since(began).Seconds(), nil
}
