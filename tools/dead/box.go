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

// Box is the stream DEAD of a cell.
type Box struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
}

// Each gives the letters selected to take, oldest first, and stops at its first error. Fault not_found names a sequence that is not there.
func (b Box) Each(ctx context.Context, s Selection, take func(Letter) error) error {
	if len(s.Sequences) > 0 {
		return b.eachOf(ctx, s.Sequences, take)
	}
	filter, err := s.filter()
	if err != nil {
		return err
	}
	return replay.Run(ctx, b.JetStream, b.Cell, replay.Options{Subject: filter}, func(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
		return take(Read(b.Cell, meta.Sequence.Stream, meta.Timestamp, m.Subject(), m.Headers(), m.Data()))
	})
}

func (b Box) eachOf(ctx context.Context, sequences []uint64, take func(Letter) error) error {
	stream, err := b.stream(ctx)
	if err != nil {
		return err
	}
	for _, sequence := range slices.Compact(slices.Sorted(slices.Values(sequences))) {
		m, err := stream.GetMsg(ctx, sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return fault.Wrap(err, errcode.NotFound, "there is no message %d on %s", sequence, topology.StreamDead)
		}
		if err != nil {
			return fault.Wrap(err, errcode.Unavailable, "message %d of %s cannot be read: %v", sequence, topology.StreamDead, err)
		}
		if err := take(Read(b.Cell, m.Sequence, m.Time, m.Subject, m.Header, m.Data)); err != nil {
			return err
		}
	}
	return nil
}

// Retry publishes the originals of the letters selected, and removes each letter once its original is stored. done is told of each; its error is why a letter
// cannot be retried and stays, which does not keep the others. Whatever else fails ends it there, so that none overtakes another.
func (b Box) Retry(ctx context.Context, s Selection, done func(Letter, error) error) error {
	stream, err := b.stream(ctx)
	if err != nil {
		return err
	}
	return b.Each(ctx, s, func(l Letter) error {
		original, err := l.Original(b.Cell)
		if err != nil {
			return done(l, err)
		}
		if _, err := b.JetStream.PublishMsg(ctx, original); err != nil {
			return fault.Wrap(err, errcode.Unavailable, "message %d could not be published to %s: %v", l.Sequence, l.Subject, err)
		}
		if err := remove(ctx, stream, l); err != nil {
			return err
		}
		return done(l, nil)
	})
}

// Drop removes the letters selected for ever.
func (b Box) Drop(ctx context.Context, s Selection, done func(Letter) error) error {
	stream, err := b.stream(ctx)
	if err != nil {
		return err
	}
	return b.Each(ctx, s, func(l Letter) error {
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
		return nil // somebody else was faster
	}
	return fault.Wrap(err, errcode.Unavailable, "message %d could not be removed from %s: %v", l.Sequence, topology.StreamDead, err)
}

func (b Box) stream(ctx context.Context) (jetstream.Stream, error) {
	stream, err := b.JetStream.Stream(ctx, topology.StreamDead)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Unavailable, "%s cannot be read: %v", topology.StreamDead, err)
	}
	return stream, nil
}
