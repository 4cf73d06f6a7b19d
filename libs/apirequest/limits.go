package apirequest

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

// DefaultTimeout is the maximum duration of a unary call.
const DefaultTimeout = 30 * time.Second

// Limits of requests. All fields are required.
type Limits struct {
	// Text is the maximum length of a string in bytes. Entries is the maximum number of entries of a list or map.
	Text, Entries int
	// Timeout of a unary call.
	Timeout time.Duration
	// Advice is what a caller whose request took too long can do.
	Advice string
}

// Interceptor returns the interceptor that rejects unary requests above the limits and sets a timeout. Handlers of
// streaming calls use [Limits.Check].
func (l Limits) Interceptor() connect.Interceptor { return interceptor{l} }

type interceptor struct{ limits Limits }

// WrapUnary implements [connect.Interceptor].
func (i interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		if m, ok := request.Any().(proto.Message); ok {
			if err := i.limits.Check(m.ProtoReflect(), ""); err != nil {
				return nil, err
			}
		}
		limited, cancel := context.WithTimeout(ctx, i.limits.Timeout)
		defer cancel()
		response, err := next(limited, request)
		if err != nil && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
			return nil, fault.Wrap(err, errcode.DeadlineExceeded, "the request takes longer than %s: %s", i.limits.Timeout,
				i.limits.Advice)
		}
		return response, err
	}
}

// WrapStreamingHandler implements [connect.Interceptor].
func (interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// WrapStreamingClient does nothing: the interceptor is for servers.
func (interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// Check checks the sizes of all strings, lists and maps of a message. It rejects zero bytes, because PostgreSQL
// cannot store them in text.
func (l Limits) Check(m protoreflect.Message, prefix string) error {
	var err error
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := prefix + string(field.Name())
		switch {
		case field.IsMap():
			err = l.checkMap(field, value.Map(), name)
		case field.IsList():
			err = l.checkList(field, value.List(), name)
		default:
			err = l.checkValue(field, value, name)
		}
		return err == nil
	})
	return err
}

func (l Limits) checkMap(field protoreflect.FieldDescriptor, values protoreflect.Map, name string) error {
	if values.Len() > l.Entries {
		return l.tooMany(name, values.Len())
	}
	var err error
	values.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		if err = l.checkValue(field.MapKey(), key.Value(), name); err == nil {
			err = l.checkValue(field.MapValue(), value, name)
		}
		return err == nil
	})
	return err
}

func (l Limits) checkList(field protoreflect.FieldDescriptor, values protoreflect.List, name string) error {
	if values.Len() > l.Entries {
		return l.tooMany(name, values.Len())
	}
	for i := range values.Len() {
		if err := l.checkValue(field, values.Get(i), name); err != nil {
			return err
		}
	}
	return nil
}

func (l Limits) tooMany(name string, entries int) error {
	return fault.New(errcode.InvalidArgument, "%s has %d entries, the limit is %d", name, entries, l.Entries).
		With("field", name)
}

func (l Limits) checkValue(field protoreflect.FieldDescriptor, value protoreflect.Value, name string) error {
	switch field.Kind() { //nolint:exhaustive // Other kinds need no check.
	case protoreflect.StringKind:
		switch text := value.String(); {
		case len(text) > l.Text:
			return fault.New(errcode.InvalidArgument, "%s has %d bytes, the limit is %d", name, len(text), l.Text).
				With("field", name)
		case strings.ContainsRune(text, 0):
			return fault.New(errcode.InvalidArgument, "%s has a zero byte", name).With("field", name)
		}
	case protoreflect.MessageKind:
		return l.Check(value.Message(), name+".")
	}
	return nil
}
