package detection

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/replay"
)

const (
	// batchSize is the number of messages that are processed at once.
	batchSize = 500
	// readAhead is the number of batches that are read and decoded ahead.
	readAhead = 2
)

// Rejection is a message that the service dead-letters.
type Rejection struct {
	Subject  string
	Sequence uint64
	// BeforeRange is true for a message before the range of the replay.
	BeforeRange bool
	// Err is an [*ownership.ForeignError] or [ingest.UnknownAgentError]; any other error reports a malformed message.
	Err error
}

func (m *message) rejection(err error) Rejection {
	return Rejection{Subject: m.subject, Sequence: m.sequence, BeforeRange: m.beforeRange, Err: err}
}

// Replayed is the result of [Detector.Replay].
type Replayed struct {
	// Facts of the messages in the range, in the order of their batches.
	Facts []events.DeployFact
	// Messages is the number of messages that were read, with those before the range.
	Messages int
	// Partial is true when the stream has dropped its first messages: facts are numbered from 1.
	Partial bool
}

// Replay processes a range of OBSERVED in batches, and calls reject with each message that the service dead-letters, in
// order. It reads the observations before the range, too: they have the state at its beginning.
func (d *Detector) Replay(
	ctx context.Context, js jetstream.JetStream, cell topology.Cell, opts replay.Options, reject func(Rejection) error,
) (Replayed, error) {
	var replayed Replayed
	batches := make(chan []message, readAhead)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		return d.read(ctx, js, cell, opts, batches)
	})
	group.Go(func() error {
		for batch := range batches {
			if replayed.Messages == 0 {
				replayed.Partial = batch[0].sequence > 1
			}
			replayed.Messages += len(batch)
			facts, rejections, err := d.process(ctx, batch)
			if err != nil {
				return err
			}
			if !batch[0].beforeRange {
				replayed.Facts = append(replayed.Facts, facts...)
			}
			for _, r := range rejections {
				if err := reject(r); err != nil {
					return err
				}
			}
		}
		return nil
	})
	err := group.Wait()
	return replayed, err //nolint:wrapcheck // both report what failed
}

// read reads and decodes the messages. A batch is before the range, or in it.
func (d *Detector) read(
	ctx context.Context, js jetstream.JetStream, cell topology.Cell, opts replay.Options, batches chan<- []message,
) error {
	fromSequence, fromTime := opts.FromSequence, opts.FromTime
	opts.FromSequence, opts.FromTime = 0, time.Time{}
	size := batchSize
	if opts.OriginalPace {
		size = 1
	}
	var batch []message
	begun := false
	send := func() error {
		if len(batch) == 0 {
			return nil
		}
		select {
		case batches <- batch:
			batch = make([]message, 0, size)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := replay.Run(ctx, js, cell, opts, func(next stored.Message) error {
		if !begun && next.Sequence >= fromSequence && !next.Stored.Before(fromTime) {
			begun = true
			if err := send(); err != nil {
				return err
			}
		}
		m := d.decode(next.Sequence, next.Subject, next.Header, next.Data)
		m.beforeRange = !begun
		if batch = append(batch, m); len(batch) < size {
			return nil
		}
		return send()
	})
	if err != nil {
		return err
	}
	return send()
}
