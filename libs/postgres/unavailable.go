package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// IsUnavailable reports whether err means that the database was or became unreachable, or rolled the
// transaction back because of a concurrent one, so that the caller may try again. If it was
// unreachable, a statement sent before may have been executed. It is false for other errors that the
// database itself returned.
func IsUnavailable(err error) bool {
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		return isTemporaryCode(refusal.Code)
	}
	var connecting *pgconn.ConnectError
	if errors.As(err, &connecting) || pgconn.SafeToRetry(err) {
		return true
	}
	connectionErrors := []error{
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE,
	}
	for _, lost := range connectionErrors {
		if errors.Is(err, lost) {
			return true
		}
	}
	return false
}

// isTemporary reports whether a connect or ping may succeed later. An error is permanent only if the server returned it
// with a permanent code.
func isTemporary(err error) bool {
	var refusal *pgconn.PgError
	return !errors.As(err, &refusal) || isTemporaryCode(refusal.Code)
}

// isTemporaryCode reports whether a server with this error code may serve later.
func isTemporaryCode(code string) bool {
	return isConcurrencyCode(code) ||
		strings.HasPrefix(code, "08") || // connection exception
		strings.HasPrefix(code, "57P") || // shutdown, crash, cannot connect now
		code == "53300" // too many connections
}

// isConcurrencyCode reports whether the server rolled a transaction back because of a concurrent one.
func isConcurrencyCode(code string) bool {
	return code == "40001" || // serialization failure
		code == "40P01" // deadlock detected
}

// UnavailableInterceptor returns an interceptor that maps the errors of [IsUnavailable] to the fault unavailable.
// Install it inside the interceptor that maps unknown errors to internal.
func UnavailableInterceptor() connect.Interceptor { return unavailableInterceptor{} }

type unavailableInterceptor struct{}

func (unavailableInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, request)
		return response, Unavailable(ctx, err)
	}
}

func (unavailableInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return Unavailable(ctx, next(ctx, conn))
	}
}

// WrapStreamingClient returns next: the interceptor is for handlers only.
func (unavailableInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// Unavailable returns the fault unavailable for the errors of [IsUnavailable], and any other error unchanged.
func Unavailable(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || !IsUnavailable(err) {
		return err
	}
	if _, isFault := errors.AsType[*fault.Error](err); isFault {
		return err
	}
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && isConcurrencyCode(refusal.Code) {
		return fault.Wrap(err, errcode.Unavailable, "a concurrent request changed the same data: try again")
	}
	return fault.Wrap(
		err, errcode.Unavailable, "the database is unreachable: try again; the request may have been executed",
	)
}
