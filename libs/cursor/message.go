package cursor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// Message is a message of the stream with what Decode made of it.
type Message[T any] struct {
	Subject  string
	Header   nats.Header
	Data     []byte
	Sequence uint64    // on the stream
	Stored   time.Time // when the stream stored it; never for ordering
	Value    T
}

// DeadLetterError says that one message of the batch can never be handled, whatever is tried. Return it from Handle to have that message put on DEAD and the
// others handled without it.
type DeadLetterError struct { //nolint:errname // a word of its own, as the handlers say it
	Sequence uint64
	Err      error
}

// Error implements error.
func (p *DeadLetterError) Error() string {
	return fmt.Sprintf("message %d cannot be handled: %v", p.Sequence, p.Err)
}

// Unwrap gives the cause.
func (p *DeadLetterError) Unwrap() error { return p.Err }

// DeadLetterErrors are several messages of one batch that can never be handled: they are put on DEAD together, before the others are tried again.
type DeadLetterErrors []*DeadLetterError //nolint:errname // as Poison

// Error implements error.
func (p DeadLetterErrors) Error() string {
	if len(p) == 1 {
		return p[0].Error()
	}
	return fmt.Sprintf("%d messages cannot be handled, the first of them: %v", len(p), p[0])
}

// Unwrap gives each of them.
func (p DeadLetterErrors) Unwrap() []error {
	all := make([]error, len(p))
	for i := range p {
		all[i] = p[i]
	}
	return all
}

// poisons are those that an error names and that are of the batch.
func poisons[T any](err error, b *batch[T]) []*DeadLetterError {
	several, are := errors.AsType[DeadLetterErrors](err)
	if one, is := errors.AsType[*DeadLetterError](err); !are && is {
		several = DeadLetterErrors{one}
	}
	seen := make(map[uint64]bool, len(several))
	return slices.DeleteFunc(slices.Clone(several), func(p *DeadLetterError) bool {
		again := seen[p.Sequence]
		seen[p.Sequence] = true
		return again || !b.has(p.Sequence)
	})
}

// Latest keeps one message per key: the newest, by newer(a, b) saying whether a is newer than b, or the last in the stream when newer is nil.
// A statement that writes a batch may name each row once only. The order of those kept is that of the stream.
func Latest[T any, K comparable](batch []Message[T], key func(*Message[T]) K, newer func(a, b *Message[T]) bool) []Message[T] {
	kept := make(map[K]int, len(batch))
	for i := range batch {
		k := key(&batch[i])
		j, known := kept[k]
		if !known || newer == nil || !newer(&batch[j], &batch[i]) {
			kept[k] = i
		}
	}
	if len(kept) == len(batch) {
		return batch
	}
	latest := make([]Message[T], 0, len(kept))
	for i := range batch {
		if kept[key(&batch[i])] == i {
			latest = append(latest, batch[i])
		}
	}
	return latest
}

// idHeader carries the id of a CloudEvent.
const idHeader = "ce-id"

// identify gives the id of the event in a message, or a digest of a message that has none.
func identify(subject string, header nats.Header, data []byte) string {
	if ids := header[idHeader]; len(ids) > 0 && ids[0] != "" {
		return ids[0]
	}
	digest := sha256.New()
	digest.Write([]byte(subject))
	digest.Write([]byte{0})
	digest.Write(data)
	return hex.EncodeToString(digest.Sum(nil))
}
