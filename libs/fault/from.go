package fault

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"lockstep.internal/schemas/gen/errcode"
)

// DetailReference is the detail that ties an `internal` fault to the log entry of its cause.
const DetailReference = "reference"

const internalMessage = "something broke inside the service"

// From returns what err is to a caller: the outermost *Error in its chain, else what a Faulter, a
// Connect, context or body-limit error says, else `internal` with err as the cause and none of its
// text. Nil for nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := asError(err); ok {
		return e
	}
	if faulter, ok := errors.AsType[Faulter](err); ok {
		if e := faulter.Fault(); e != nil {
			return e
		}
	}
	if rpc, ok := errors.AsType[*connect.Error](err); ok {
		return fromConnect(rpc)
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return Wrap(err, errcode.PayloadTooLarge, "the request body is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, context.Canceled):
		return Wrap(err, errcode.Canceled, "the call was canceled")
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(err, errcode.DeadlineExceeded, "the call did not finish in the time it was given")
	default:
		return Wrap(err, errcode.Internal, internalMessage)
	}
}

// Public returns what may leave the process for err, nil for nil. An `internal` fault that has no
// reference yet is given one and logged with it, whole; all text is valid UTF-8 afterwards.
func Public(ctx context.Context, logger *slog.Logger, err error) *Error {
	if err == nil {
		return nil
	}
	e := From(err)
	public := &Error{Code: e.Code, Message: strings.ToValidUTF8(e.Message, "\uFFFD"), cause: e.cause}
	if _, registered := errcode.Lookup(e.Code); !registered {
		public.Code = errcode.Internal
	}
	for key, value := range e.Details {
		if public.Details == nil {
			public.Details = make(map[string]string, len(e.Details)+1)
		}
		public.Details[strings.ToValidUTF8(key, "\uFFFD")] = strings.ToValidUTF8(value, "\uFFFD")
	}
	if public.Code != errcode.Internal || public.Details[DetailReference] != "" {
		return public
	}
	reference := uuid.NewString()
	logger.ErrorContext(ctx, "internal fault", slog.String(DetailReference, reference), slog.String("error", err.Error()))
	public.Message += "; the operator finds it in the log by the reference " + reference
	return public.With(DetailReference, reference)
}
