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
	// maxRequest is the maximum size of an uncompressed request, in bytes.
	maxRequest = 1 << 20
	// maxText is the maximum length of a string in a request, in bytes. maxEntries is the maximum number of entries of a
	// list or map.
	maxText    = 4096
	maxEntries = 100
	// timeout is the maximum duration of a unary call.
	timeout = 30 * time.Second
	// maxStats is the maximum number of concurrent GetStats calls. Each may read the whole history, and the reader and the
	// sinks need the database too.
	maxStats = 2
)

// limits is an interceptor that rejects requests above the limits and sets a timeout.
type limits struct{}

// newLimits returns the interceptor for unary calls. Handlers of streaming calls call [checkMessage].
func newLimits() connect.Interceptor { return limits{} }

func (limits) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		if m, ok := request.Any().(proto.Message); ok {
			if err := checkMessage(m.ProtoReflect(), ""); err != nil {
				return nil, err
			}
		}
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		response, err := next(limited, request)
		if err != nil && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
			return nil, fault.Wrap(err, errcode.DeadlineExceeded,
				"the request takes longer than %s: use a narrower filter", timeout)
		}
		return response, err
	}
}

func (limits) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// WrapStreamingClient does nothing: the interceptor is for servers.
func (limits) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// checkMessage checks the sizes of all strings, lists and maps of a message. It rejects zero bytes, because PostgreSQL
// cannot store them in text.
func checkMessage(m protoreflect.Message, prefix string) error {
	var err error
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := prefix + string(field.Name())
		switch {
		case field.IsMap():
			err = checkMap(field, value.Map(), name)
		case field.IsList():
			err = checkList(field, value.List(), name)
		default:
			err = checkValue(field, value, name)
		}
		return err == nil
	})
	return err
}

func checkMap(field protoreflect.FieldDescriptor, values protoreflect.Map, name string) error {
	if values.Len() > maxEntries {
		return tooMany(name, values.Len())
	}
	var err error
	values.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		if err = checkValue(field.MapKey(), key.Value(), name); err == nil {
			err = checkValue(field.MapValue(), value, name)
		}
		return err == nil
	})
	return err
}

func checkList(field protoreflect.FieldDescriptor, values protoreflect.List, name string) error {
	if values.Len() > maxEntries {
		return tooMany(name, values.Len())
	}
	for i := range values.Len() {
		if err := checkValue(field, values.Get(i), name); err != nil {
			return err
		}
	}
	return nil
}

func tooMany(name string, entries int) error {
	return fault.New(errcode.InvalidArgument, "%s has %d entries, the limit is %d", name, entries, maxEntries).
		With("field", name)
}

func checkValue(field protoreflect.FieldDescriptor, value protoreflect.Value, name string) error {
	switch field.Kind() { //nolint:exhaustive // Other kinds need no check.
	case protoreflect.StringKind:
		switch text := value.String(); {
		case len(text) > maxText:
			return fault.New(errcode.InvalidArgument, "%s has %d bytes, the limit is %d", name, len(text), maxText).
				With("field", name)
		case strings.ContainsRune(text, 0):
			return fault.New(errcode.InvalidArgument, "%s has a zero byte", name).With("field", name)
		}
	case protoreflect.MessageKind:
		return checkMessage(value.Message(), name+".")
	}
	return nil
}

// semaphore limits concurrent calls.
type semaphore chan struct{}

// acquire waits for a slot and returns the function that releases it.
func (t semaphore) acquire(ctx context.Context) (func(), error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), errcode.ResourceExhausted, "too many statistics requests: retry later")
	}
}
