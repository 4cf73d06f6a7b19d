package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/tools/detection"
	"lockstep.internal/tools/replay"
)

const (
	replayWorkloads = 1000
	replayRollouts  = 8
)

// replayEvents measures `lockstep replay --through deploys` beside a bare consumer of the same
// messages.
func replayEvents(ctx context.Context, f *fixture, size Size, measured Measured) {
	_, js, _ := f.jetStream(ctx)
	count := newRecording(js, size.of(replayWorkloads)).publish(ctx, replayRollouts)
	m := takeTurns(ctx, size.For,
		func(int) float64 { return detectRollouts(ctx, js, count) },
		func(int) float64 { return consume(ctx, js, count) })
	m.Note = fmt.Sprintf("%d messages of %d workloads", count, size.of(replayWorkloads))
	measured["events_per_s"] = m
}

func detectRollouts(ctx context.Context, js jetstream.JetStream, count uint64) float64 {
	d := detection.New(benchCell, environment.Rules{})
	began := time.Now()
	opts := replay.Options{Subject: topology.FamilyObserved + ".>"}
	replayed := must(d.Replay(ctx, js, benchCell, opts, func(r detection.Rejection) error { return r.Err }))
	rate := perSecond(int(count), began)
	if len(replayed.Facts) == 0 || replayed.Messages != int(count) {
		check(fmt.Errorf("replay: %d facts of %d messages, want %d messages", len(replayed.Facts), replayed.Messages, count))
	}
	return rate
}

// consume reads the messages with their sequences.
func consume(ctx context.Context, js jetstream.JetStream, count uint64) float64 {
	stream := must(js.Stream(ctx, topology.StreamObserved))
	began := time.Now()
	consumer := must(stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Minute,
	}))
	messages := must(consumer.Messages())
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for range count {
		must(must(messages.Next()).Metadata())
	}
	return perSecond(int(count), began)
}
