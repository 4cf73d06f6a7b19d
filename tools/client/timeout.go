package client

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// answerTimeout is the time in which a service must answer a call. Streams have no limit.
const answerTimeout = time.Minute

// answerWithin ends calls that the service does not answer, such as those to one that waits for its database.
func answerWithin(limit time.Duration) connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			noAnswer := fault.New(errcode.DeadlineExceeded,
				"the service did not answer %s within %s: its /readyz says what it waits for", request.Spec().Procedure, limit)
			ctx, cancel := context.WithTimeoutCause(ctx, limit, noAnswer)
			defer cancel()
			response, err := next(ctx, request)
			if err != nil && errors.Is(context.Cause(ctx), noAnswer) {
				return nil, noAnswer
			}
			return response, err
		}
	}
}
