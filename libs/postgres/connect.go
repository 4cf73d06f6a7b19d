package postgres

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// outages tells a database that is away from a fault of the service: the caller may try again.
type outages struct{}

// UnavailableInterceptor returns the interceptor that makes outages of the database unavailable. It comes after the one that makes everything unknown internal.
func UnavailableInterceptor() connect.Interceptor { return outages{} }

func (outages) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, request)
		return response, unavailable(ctx, err)
	}
}

func (outages) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return unavailable(ctx, next(ctx, conn))
	}
}

// WrapStreamingClient is for clients only, which this interceptor is not.
func (outages) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func unavailable(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || !IsUnavailable(err) {
		return err
	}
	if _, said := errors.AsType[*fault.Error](err); said {
		return err
	}
	return fault.Wrap(err, errcode.Unavailable, "the database cannot be reached at the moment: try again; what was asked for may have been done")
}
