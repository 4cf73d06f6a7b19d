package api

import (
	"context"
	"log/slog"
	"net/http"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/lockstep/relay/v1/relayv1connect"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/registry"
)

// maxRequest is the largest request, in bytes.
const maxRequest = 64 << 10

// Callers authenticates callers; a [forward.Authenticator].
type Callers interface {
	Caller(header http.Header) (policy.Caller, error)
}

// Dependencies of the API, all required.
type Dependencies struct {
	Registry *registry.Registry
	Callers  Callers
	// MayRead returns an error if the caller may not read the Kubernetes API of the agent.
	MayRead func(caller policy.Caller, agentID int64) error
	// Get asks the Kubernetes API of an agent, as the caller; see [forward.Handler.Get].
	Get func(ctx context.Context, caller policy.Caller, agentID, connectionID int64, path, accept string,
		read func(*http.Response) error) error
	Logger *slog.Logger
	// Interceptors that come before all others, such as tracing.
	Interceptors []connect.Interceptor
}

// NewHandler serves the API.
func NewHandler(d Dependencies) http.Handler {
	interceptors := append([]connect.Interceptor{fault.NewInterceptor(d.Logger)}, d.Interceptors...)
	mux := http.NewServeMux()
	mux.Handle(relayv1connect.NewRelayServiceHandler(&service{d}, connect.WithInterceptors(interceptors...),
		connect.WithReadMaxBytes(maxRequest)))
	return authenticate(d, mux)
}
