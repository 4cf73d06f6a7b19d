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
	// maxRequest is the maximum size of an uncompressed request, in bytes. A file of a pipeline has up to 256 KiB.
	maxRequest = 1 << 20
	// maxText is the maximum length of a string in a request, in bytes. maxEntries is the maximum number of entries of a
	// list.
	maxText    = 64 << 10
	maxEntries = 1000
	// timeout is the maximum duration of a unary call.
	timeout = 30 * time.Second
)

// limits is an interceptor that rejects requests above the limits and sets a timeout.
type limits struct{}

// newLimits returns the interceptor for unary calls. Requests of streaming calls have nothing to check.
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
			return nil, fault.Wrap(err, errcode.DeadlineExceeded, "the request takes longer than %s: retry later", timeout)
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

// checkMessage checks the sizes of all strings and lists of a message. It rejects zero bytes, because PostgreSQL cannot
// store them in text. No message of the API has a map.
func checkMessage(m protoreflect.Message, prefix string) error {
	var err error
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := prefix + string(field.Name())
		if field.IsList() {
			err = checkList(field, value.List(), name)
		} else {
			err = checkValue(field, value, name)
		}
		return err == nil
	})
	return err
}

func checkList(field protoreflect.FieldDescriptor, values protoreflect.List, name string) error {
	if values.Len() > maxEntries {
		return fault.New(errcode.InvalidArgument, "%s has %d entries, the limit is %d", name, values.Len(), maxEntries).
			With("field", name)
	}
	for i := range values.Len() {
		if err := checkValue(field, values.Get(i), name); err != nil {
			return err
		}
	}
	return nil
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
