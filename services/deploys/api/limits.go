package api

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// maxRequest bounds a request as it is after it was unpacked, in bytes.
	maxRequest = 1 << 20
	// maxText bounds every text of a request, in bytes, and maxEntries every list and map.
	maxText    = 4096
	maxEntries = 100
	// patience is how long an answer may take.
	patience = 30 * time.Second
	// atOnce is how many questions for numbers are worked on at once: each may read the whole
	// history, and the reader of the stream and sinks need the database too.
	atOnce = 2
)

// limits refuses what no honest caller asks, and gives up what takes too long.
type limits struct{}

// newLimits returns the interceptor that bounds unary calls. Those that stream check their requests
// with [plausible].
func newLimits() connect.Interceptor { return limits{} }

func (limits) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		if m, is := request.Any().(proto.Message); is {
			if err := plausible(m.ProtoReflect(), ""); err != nil {
				return nil, err
			}
		}
		bounded, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		response, err := next(bounded, request)
		if err != nil && ctx.Err() == nil && errors.Is(bounded.Err(), context.DeadlineExceeded) {
			return nil, fault.Wrap(err, errcode.DeadlineExceeded, "it takes longer than %s: ask for less", patience)
		}
		return response, err
	}
}

func (limits) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// WrapStreamingClient is for clients only, which this interceptor is not.
func (limits) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// plausible checks every text of a message: what the database cannot keep it cannot look for.
func plausible(m protoreflect.Message, within string) error {
	var wrong error
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := within + string(field.Name())
		switch {
		case field.IsMap():
			wrong = plausibleMap(field, value.Map(), name)
		case field.IsList():
			wrong = plausibleList(field, value.List(), name)
		default:
			wrong = plausibleValue(field, value, name)
		}
		return wrong == nil
	})
	return wrong
}

func plausibleMap(field protoreflect.FieldDescriptor, values protoreflect.Map, name string) error {
	if values.Len() > maxEntries {
		return tooMany(name, values.Len())
	}
	var wrong error
	values.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		if wrong = plausibleValue(field.MapKey(), key.Value(), name); wrong == nil {
			wrong = plausibleValue(field.MapValue(), value, name)
		}
		return wrong == nil
	})
	return wrong
}

func plausibleList(field protoreflect.FieldDescriptor, values protoreflect.List, name string) error {
	if values.Len() > maxEntries {
		return tooMany(name, values.Len())
	}
	for i := range values.Len() {
		if err := plausibleValue(field, values.Get(i), name); err != nil {
			return err
		}
	}
	return nil
}

func tooMany(name string, entries int) error {
	return fault.New(errcode.InvalidArgument, "%s has %d entries, at most %d may be", name, entries, maxEntries).With("field", name)
}

func plausibleValue(field protoreflect.FieldDescriptor, value protoreflect.Value, name string) error {
	switch field.Kind() { //nolint:exhaustive // of the others any value will do
	case protoreflect.StringKind:
		switch text := value.String(); {
		case len(text) > maxText:
			return fault.New(errcode.InvalidArgument, "%s has %d bytes, at most %d may be", name, len(text), maxText).With("field", name)
		case strings.ContainsRune(text, 0):
			return fault.New(errcode.InvalidArgument, "%s has a zero byte", name).With("field", name)
		}
	case protoreflect.MessageKind:
		return plausible(value.Message(), name+".")
	}
	return nil
}

// turns lets some callers in at a time.
type turns chan struct{}

// take waits for a turn; the caller gives it back.
func (t turns) take(ctx context.Context) (func(), error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), errcode.ResourceExhausted, "others ask for numbers already: ask again in a while")
	}
}
