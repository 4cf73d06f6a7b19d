package api

import (
	"context"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	"lockstep.internal/schemas/gen/lockstep/relay/v1/relayv1connect"
	"lockstep.internal/services/relay/policy"
)

// Scopes returns the scope that each method needs.
func Scopes() access.Scopes {
	return access.Scopes{
		relayv1connect.RelayServiceConnectedAgentsByIdProcedure:       access.ScopeRead,
		relayv1connect.RelayServiceConnectedAgentsForProjectProcedure: access.ScopeRead,
		relayv1connect.RelayServiceGetPodsProcedure:                   access.ScopeRead,
		relayv1connect.RelayServiceListRelaysProcedure:                access.ScopeRead,
	}
}

type callerKey struct{}

// callerFrom returns the caller of a request.
func callerFrom(ctx context.Context) policy.Caller {
	c, _ := ctx.Value(callerKey{}).(policy.Caller)
	return c
}

// authenticate identifies the caller of each call, and checks the scope of its token.
func authenticate(callers Callers) func(connect.UnaryFunc) connect.UnaryFunc {
	needed := Scopes()
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
			caller, err := callers.Caller(request.Header())
			if err != nil {
				return nil, err
			}
			if err := needed.Check(caller.Scope, request.Spec().Procedure); err != nil {
				return nil, err
			}
			return next(context.WithValue(ctx, callerKey{}, caller), request)
		}
	}
}
