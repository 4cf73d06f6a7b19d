package client

import (
	"context"
	"log/slog"
	"strings"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// API is a client of the state service for one user. Errors of calls are faults.
type API struct {
	Directory   statev1connect.DirectoryServiceClient
	Tokens      statev1connect.TokenServiceClient
	Agents      statev1connect.AgentServiceClient
	Templates   statev1connect.TemplateServiceClient
	Workspaces  statev1connect.WorkspaceServiceClient
	Operations  statev1connect.OperationServiceClient
	Subscribers statev1connect.SubscriberServiceClient
	Shares      statev1connect.WorkspaceAccessServiceClient
	SSHKeys     statev1connect.SSHKeyServiceClient
	PullSecrets statev1connect.PullSecretServiceClient
	Gateway     statev1connect.GatewayServiceClient

	access *accessTokens
}

// New returns a client of the state service at the URL server. It authenticates with a personal
// access token.
func New(http connect.HTTPClient, server, token string) *API {
	options := connect.WithInterceptors(faults(), answerWithin(answerTimeout), unreachable{}, bearer(token))
	url := strings.TrimSuffix(server, "/")
	tokens := statev1connect.NewTokenServiceClient(http, url, options)
	return &API{
		Directory:   statev1connect.NewDirectoryServiceClient(http, url, options),
		Tokens:      tokens,
		Agents:      statev1connect.NewAgentServiceClient(http, url, options),
		Templates:   statev1connect.NewTemplateServiceClient(http, url, options),
		Workspaces:  statev1connect.NewWorkspaceServiceClient(http, url, options),
		Operations:  statev1connect.NewOperationServiceClient(http, url, options),
		Subscribers: statev1connect.NewSubscriberServiceClient(http, url, options),
		Shares:      statev1connect.NewWorkspaceAccessServiceClient(http, url, options),
		SSHKeys:     statev1connect.NewSSHKeyServiceClient(http, url, options),
		PullSecrets: statev1connect.NewPullSecretServiceClient(http, url, options),
		Gateway:     statev1connect.NewGatewayServiceClient(http, url, options),
		access:      newAccessTokens(tokens),
	}
}

// faults turns errors of calls into faults.
func faults() connect.Interceptor { return fault.NewInterceptor(slog.New(slog.DiscardHandler)) }

// bearer adds the token to each call.
type bearer string

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		request.Header().Set("Authorization", "Bearer "+string(b))
		return next(ctx, request)
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(b))
		return conn
	}
}

// WrapStreamingHandler does nothing: the interceptor is for clients.
func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
