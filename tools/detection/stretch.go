package detection

import (
	"context"
	"time"

	"lockstep.internal/services/deploys/observation"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/replay"
)

// Message is one of a stretch.
type Message struct {
	Subject string
	// Sequence on the stream, and Number in the stretch, from 1.
	Sequence, Number uint64
	Stored           time.Time

	observation observation.Observation
	err         error
}

// ahead is how many messages are handed on at once, and depth how many such heaps are read ahead.
const (
	ahead = 128
	depth = 4
)

// Replay takes in a stretch of OBSERVED. Each is called for each message, in order; it has the
// message taken in by detect, as [Detector.Take] would, or leaves that. Messages are read ahead of
// it, which makes a difference to nothing but time.
func (d *Detector) Replay(ctx context.Context, js jetstream.JetStream, cell topology.Cell, opts replay.Options,
	each func(m *Message, detect func() ([]events.DeployFact, error)) error,
) error {
	heaps := make(chan []Message, depth)
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(heaps)
		return d.read(groupCtx, js, cell, opts, heaps)
	})
	group.Go(func() error {
		for heap := range heaps {
			for i := range heap {
				m := &heap[i]
				err := each(m, func() ([]events.DeployFact, error) {
					if m.err != nil {
						return nil, m.err
					}
					return d.process(&m.observation, m.Sequence)
				})
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
	return group.Wait() //nolint:wrapcheck // both say what failed
}

// read reads the messages and finds out what they say.
func (d *Detector) read(
	ctx context.Context,
	js jetstream.JetStream,
	cell topology.Cell,
	opts replay.Options,
	heaps chan<- []Message,
) error {
	var heap []Message
	most := ahead
	if opts.OriginalPace {
		most = 1 // each when it is due
	}
	handOn := func() error {
		if len(heap) == 0 {
			return nil
		}
		select {
		case heaps <- heap:
			heap = nil
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := replay.Run(ctx, js, cell, opts, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) error {
		m := Message{
			Subject:  msg.Subject(),
			Sequence: meta.Sequence.Stream,
			Number:   meta.Sequence.Consumer,
			Stored:   meta.Timestamp,
		}
		m.observation, m.err = d.decoder.Decode(m.Subject, msg.Headers(), msg.Data())
		if heap == nil {
			heap = make([]Message, 0, most)
		}
		if heap = append(heap, m); len(heap) < most {
			return nil
		}
		return handOn()
	})
	if err != nil {
		return err
	}
	return handOn()
}
