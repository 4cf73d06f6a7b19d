package fault

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
)

// DetailReference is the key of the detail that identifies the log entry with the cause of an `internal` fault.
const DetailReference = "reference"

const internalMessage = "internal error"

// From converts err to an Error: the outermost *Error in the chain, else the result of a Faulter, else the fault of
// a Connect, context or body-limit error, else `internal` with err as the cause and none of its text. It returns
// nil for nil.
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
		return Wrap(err, errcode.DeadlineExceeded, "the deadline of the call was exceeded")
	default:
		return Wrap(err, errcode.Internal, internalMessage)
	}
}

// Public returns the Error to send to the caller, nil for nil. It logs an internal error completely, with a new
// reference unless it has one. All text is valid UTF-8 afterwards.
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
	logger.ErrorContext(ctx, "internal fault", slog.String(DetailReference, reference), logkey.Error(err))
	public.Message += ": search the log for the reference " + reference
	return public.With(DetailReference, reference)
}
