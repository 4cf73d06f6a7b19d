package cursor

import (
	"context"
	"errors"
	"time"

	"lockstep.internal/libs/postgres"
)

// batch is the content of one transaction.
type batch[T any] struct {
	messages    []Message[T]
	malformed   []malformed[T]
	last        Message[T] // malformed or not; Sequence 0 while the batch is empty
	lag         uint64     // messages in the stream after the last one
	bytes       int
	lastArrival time.Time // arrival of the last message
}

// malformed is a message that Decode rejected.
type malformed[T any] struct {
	message Message[T]
	err     error
}

func (b *batch[T]) size() int { return len(b.messages) + len(b.malformed) }

func (b *batch[T]) find(sequence uint64) int {
	for i := range b.messages {
		if b.messages[i].Sequence == sequence {
			return i
		}
	}
	return -1
}

func (b *batch[T]) has(sequence uint64) bool { return b.find(sequence) >= 0 }

// remove removes and returns a message that the batch contains.
func (b *batch[T]) remove(sequence uint64) *Message[T] {
	i := b.find(sequence)
	removed := b.messages[i]
	b.messages = append(b.messages[:i], b.messages[i+1:]...)
	return &removed
}

// cutFirstHalf removes and returns the first half of at least two messages.
func (b *batch[T]) cutFirstHalf() *batch[T] {
	n := len(b.messages) / 2
	rest := b.messages[n:]
	first := &batch[T]{messages: b.messages[:n], last: b.messages[n-1], lag: b.lag + uint64(len(rest))}
	b.messages = rest
	return first
}

// dataError is an error that the database reports about the data of a batch.
type dataError struct{ error }

func (e dataError) Unwrap() error { return e.error }

// asDataError marks errors that a retry cannot mend because they come from the content of the messages.
func asDataError(err error) error {
	if postgres.IsDataError(err) {
		return dataError{err}
	}
	return err
}

// dataErrorAttempts is how often a message alone must fail with a data error. Such an error can also come from other
// transactions, for example a missing parent of a foreign key. The next attempt sees what those committed.
const dataErrorAttempts = 3

// batchHandler is what a session and a replay do with a batch.
type batchHandler[T any] interface {
	// commit handles a batch, or a part of it, in one transaction.
	commit(ctx context.Context, b *batch[T]) error
	// pause waits before the next attempt at a message that failed alone with a data error, so many times.
	pause(ctx context.Context, m *Message[T], err error, failures int) error
	// reject is called with a message that can never be handled.
	reject(ctx context.Context, m *Message[T], reason error) error
}

// handle commits the batch and rejects the messages that can never be handled: those that the handler reports, and
// those that alone fail with a data error. To find the latter, it commits the halves of the batch one after the other.
// So each message is handled after the effects of all earlier ones, as in one batch.
func (b *batch[T]) handle(ctx context.Context, h batchHandler[T]) error {
	for attempts := 0; ; {
		err := h.commit(ctx, b)
		if err == nil || ctx.Err() != nil {
			return err
		}
		reported := deadLetters(err, b)
		_, isData := errors.AsType[dataError](err)
		switch {
		case len(reported) > 0:
			for _, d := range reported {
				if err := h.reject(ctx, b.remove(d.Sequence), d.Err); err != nil {
					return err
				}
			}
		case !isData || len(b.messages) == 0:
			return err
		case len(b.messages) > 1:
			if err := b.cutFirstHalf().handle(ctx, h); err != nil {
				return err
			}
		default:
			if attempts++; attempts < dataErrorAttempts {
				if err := h.pause(ctx, &b.messages[0], err, attempts); err != nil {
					return err
				}
				continue
			}
			if err := h.reject(ctx, b.remove(b.messages[0].Sequence), err); err != nil {
				return err
			}
		}
	}
}
