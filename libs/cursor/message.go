package cursor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

// Message is a message of the stream with its decoded value.
type Message[T any] struct {
	Subject  string
	Header   nats.Header
	Data     []byte
	Sequence uint64    // on the stream
	Stored   time.Time // when the stream stored it; never used for ordering
	Value    T
}

// DeadLetterError reports a message of the batch that can never be handled. Handle returns it to
// move that message to DEAD; the other messages are then handled without it.
type DeadLetterError struct {
	Sequence uint64
	Err      error
}

// Error implements error.
func (e *DeadLetterError) Error() string {
	return fmt.Sprintf("message %d cannot be handled: %v", e.Sequence, e.Err)
}

// Unwrap returns the cause.
func (e *DeadLetterError) Unwrap() error { return e.Err }

// PartlyMalformedError is the error of a message with several items of which some are malformed. Decode returns it with
// a Value of the others: they are handled, and the whole message moves to DEAD.
type PartlyMalformedError struct{ Err error }

// Error implements error.
func (e *PartlyMalformedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PartlyMalformedError) Unwrap() error { return e.Err }

// DeadLetterErrors reports several messages of one batch. They move to DEAD together before the
// others are handled.
type DeadLetterErrors []*DeadLetterError

// Error implements error.
func (e DeadLetterErrors) Error() string {
	if len(e) == 1 {
		return e[0].Error()
	}
	return fmt.Sprintf("%d messages cannot be handled; first: %v", len(e), e[0])
}

// Unwrap returns each error.
func (e DeadLetterErrors) Unwrap() []error {
	all := make([]error, len(e))
	for i := range e {
		all[i] = e[i]
	}
	return all
}

// deadLetters returns the distinct messages of the batch that err reports.
func deadLetters[T any](err error, b *batch[T]) []*DeadLetterError {
	list, isList := errors.AsType[DeadLetterErrors](err)
	if one, isOne := errors.AsType[*DeadLetterError](err); !isList && isOne {
		list = DeadLetterErrors{one}
	}
	seen := make(map[uint64]bool, len(list))
	return slices.DeleteFunc(slices.Clone(list), func(e *DeadLetterError) bool {
		duplicate := seen[e.Sequence]
		seen[e.Sequence] = true
		return duplicate || !b.has(e.Sequence)
	})
}

const (
	// idHeader carries the id of a CloudEvent.
	idHeader = "ce-id"
	// maxID limits the ids that are stored as they are, in bytes.
	maxID = 1024
)

// identify returns the id of the event in a message. It returns a digest for a message without an id, and for an id
// that PostgreSQL cannot store.
func identify(subject string, header nats.Header, data []byte) string {
	digest := sha256.New()
	if ids := header[idHeader]; len(ids) > 0 && ids[0] != "" {
		id := ids[0]
		if len(id) <= maxID && utf8.ValidString(id) && !strings.ContainsRune(id, 0) {
			return id
		}
		digest.Write([]byte(id))
		digest.Write([]byte{0})
	}
	digest.Write([]byte(subject))
	digest.Write([]byte{0})
	digest.Write(data)
	return hex.EncodeToString(digest.Sum(nil))
}
