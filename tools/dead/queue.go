package dead

import (
	"context"
	"errors"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/tools/replay"
)

// Queue is the stream DEAD of a cell.
type Queue struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
}

// Each calls take with the selected letters, oldest first, until its first error. The error
// not_found names a missing sequence.
func (q Queue) Each(ctx context.Context, s Selection, take func(Letter) error) error {
	if len(s.Sequences) > 0 {
		return q.eachOf(ctx, s.Sequences, take)
	}
	filter, err := s.filter()
	if err != nil {
		return err
	}
	return replay.Run(
		ctx,
		q.JetStream,
		q.Cell,
		replay.Options{Subject: filter},
		func(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
			return take(Read(q.Cell, meta.Sequence.Stream, meta.Timestamp, m.Subject(), m.Headers(), m.Data()))
		},
	)
}

func (q Queue) eachOf(ctx context.Context, sequences []uint64, take func(Letter) error) error {
	stream, err := q.stream(ctx)
	if err != nil {
		return err
	}
	for _, sequence := range slices.Compact(slices.Sorted(slices.Values(sequences))) {
		m, err := stream.GetMsg(ctx, sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return fault.Wrap(err, errcode.NotFound, "message %d does not exist on %s", sequence, topology.StreamDead)
		}
		if err != nil {
			return fault.Wrap(err, errcode.Unavailable, "read message %d of %s: %v", sequence, topology.StreamDead, err)
		}
		if err := take(Read(q.Cell, m.Sequence, m.Time, m.Subject, m.Header, m.Data)); err != nil {
			return err
		}
	}
	return nil
}

// Retry publishes the original messages of the selected letters, and removes each letter when its
// message is stored. It calls done for each letter, with an error when the letter cannot be
// retried. Any other error stops it, to keep the order.
func (q Queue) Retry(ctx context.Context, s Selection, done func(Letter, error) error) error {
	stream, err := q.stream(ctx)
	if err != nil {
		return err
	}
	return q.Each(ctx, s, func(l Letter) error {
		original, err := l.Original(q.Cell)
		if err != nil {
			return done(l, err)
		}
		if _, err := q.JetStream.PublishMsg(ctx, original); err != nil {
			return fault.Wrap(err, errcode.Unavailable, "publish message %d to %s: %v", l.Sequence, l.Subject, err)
		}
		if err := remove(ctx, stream, l); err != nil {
			return err
		}
		return done(l, nil)
	})
}

// Drop removes the selected letters permanently. It calls done for each.
func (q Queue) Drop(ctx context.Context, s Selection, done func(Letter) error) error {
	stream, err := q.stream(ctx)
	if err != nil {
		return err
	}
	return q.Each(ctx, s, func(l Letter) error {
		if err := remove(ctx, stream, l); err != nil {
			return err
		}
		return done(l)
	})
}

func remove(ctx context.Context, stream jetstream.Stream, l Letter) error {
	err := stream.DeleteMsg(ctx, l.Sequence)
	if err == nil {
		return nil
	}
	if _, gone := stream.GetMsg(ctx, l.Sequence); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil // removed by another process
	}
	return fault.Wrap(err, errcode.Unavailable, "remove message %d from %s: %v", l.Sequence, topology.StreamDead, err)
}

func (q Queue) stream(ctx context.Context) (jetstream.Stream, error) {
	stream, err := q.JetStream.Stream(ctx, topology.StreamDead)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Unavailable, "read %s: %v", topology.StreamDead, err)
	}
	return stream, nil
}
