package forward

import (
	"context"

	"lockstep.internal/services/relay/route"
)

// WithDestination returns the context of a request that a [Handler] sends to this destination.
func WithDestination(ctx context.Context, to route.Destination) context.Context {
	return withRequest(ctx, &proxiedRequest{requestPath: requestPath{Destination: to}})
}
