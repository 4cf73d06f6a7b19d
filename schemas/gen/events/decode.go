package events

import (
	"fmt"
)

// Data is a pointer to the data of one event type, such as *[ObservedTick].
type Data[T any] interface {
	*T
	decode(r *reader)
	eventType() string
}

// Decode decodes and validates the data of an event in one pass:
// events.Decode[events.ObservedTick](data).
//
// The data must be one JSON value that the schema of the event type accepts. Unknown fields are
// ignored. An object must not contain a name twice, text must be valid UTF-8, and an integer must
// fit 64 bits and have neither fraction nor exponent. The error names the event type and lists the
// first ten faults, each with a JSON pointer. On an error, the value is nil. Decode is safe for
// concurrent use, and the result does not refer to data.
func Decode[T any, P Data[T]](data []byte) (*T, error) {
	value := new(T)
	p := P(value)
	r := readers.Get().(*reader) //nolint:forcetypeassert,errcheck // The pool holds nothing else.
	defer r.release()
	r.reset(data)
	p.decode(r)
	if err := r.finish(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.eventType(), err)
	}
	return value, nil
}

// DecodeAny is [Decode] for an event type that is known by name. It returns a pointer, such as
// *[ObservedTick].
func DecodeAny(eventType string, data []byte) (any, error) { return decoded(eventType, data) }

// Validate checks the data of an event as [Decode] does. An event type without a schema is an
// error.
func Validate(eventType string, data []byte) error {
	_, err := decoded(eventType, data)
	return err
}

func unknownType(eventType string) error {
	return fmt.Errorf("event type %q: not in the registry of event types", shorten(eventType))
}

// untyped returns a result of Decode, and an untyped nil for an error.
func untyped[T any](value *T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return value, nil
}
