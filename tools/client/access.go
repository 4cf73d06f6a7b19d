package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// renewBefore is how long before its expiry an access token is replaced.
const renewBefore = time.Minute

// accessTokens caches the access tokens of one user by service. A token is exchanged on first use
// and kept until it expires.
type accessTokens struct {
	client statev1connect.TokenServiceClient
	now    func() time.Time

	mu     sync.Mutex
	tokens map[string]*cachedToken
}

// cachedToken is the access token for one service. Only the holder of lock may change it.
type cachedToken struct {
	lock    chan struct{} // locked while it holds an element; a channel, so that waiting ends with a context
	value   string
	expires time.Time
}

func newAccessTokens(client statev1connect.TokenServiceClient) *accessTokens {
	return &accessTokens{client: client, now: time.Now, tokens: map[string]*cachedToken{}}
}

func (a *accessTokens) cached(service string) *cachedToken {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.tokens[service]
	if c == nil {
		c = &cachedToken{lock: make(chan struct{}, 1)}
		a.tokens[service] = c
	}
	return c
}

// token returns a valid token for the service, other than refused. Concurrent calls share one
// exchange.
func (a *accessTokens) token(ctx context.Context, service, refused string) (string, error) {
	c := a.cached(service)
	select {
	case c.lock <- struct{}{}:
		defer func() { <-c.lock }()
	case <-ctx.Done():
		return "", fault.From(context.Cause(ctx))
	}
	if c.value != "" && c.value != refused && a.now().Add(renewBefore).Before(c.expires) {
		return c.value, nil
	}
	token, err := a.exchange(ctx, service)
	if err != nil {
		return "", err
	}
	c.value, c.expires = token.Value, token.ExpiresAt
	return c.value, nil
}

func (a *accessTokens) exchange(ctx context.Context, service string) (AccessToken, error) {
	request := connect.NewRequest(&statev1.ExchangeTokenRequest{Audience: []string{service}})
	response, err := a.client.ExchangeToken(ctx, request)
	if err != nil {
		return AccessToken{}, fmt.Errorf("get an access token for the service %s: %w", service, err)
	}
	return AccessToken{Value: response.Msg.GetAccessToken(), ExpiresAt: response.Msg.GetExpiresAt().AsTime()}, nil
}

// AccessToken is a short-lived token for one service.
type AccessToken struct {
	Value     string
	ExpiresAt time.Time
}

// AccessToken exchanges the personal access token for an access token of the service. Errors are
// faults.
func (a *API) AccessToken(ctx context.Context, service string) (AccessToken, error) {
	return a.access.exchange(ctx, service)
}

// ClientOption authenticates a client of another service, such as deploys, as the same user. It
// renews access tokens when needed, and turns errors into faults. If the service refuses the token
// of a unary call, the call is retried once with a new token. A stream starts with a valid token.
// If the service ends the stream with unavailable, the caller opens it again.
func (a *API) ClientOption(service string) connect.ClientOption {
	token := &tokenInterceptor{tokens: a.access, service: service}
	return connect.WithInterceptors(faults(), answerWithin(answerTimeout), unreachable{}, token)
}

// tokenInterceptor adds an access token to each call.
type tokenInterceptor struct {
	tokens  *accessTokens
	service string
}

func (i *tokenInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		token, err := i.tokens.token(ctx, i.service, "")
		if err != nil {
			return nil, err
		}
		response, err := next(ctx, withToken(request, token))
		if !fault.Is(err, errcode.Unauthenticated) {
			return response, err
		}
		if token, err = i.tokens.token(ctx, i.service, token); err != nil {
			return nil, err
		}
		return next(ctx, withToken(request, token))
	}
}

func withToken(request connect.AnyRequest, token string) connect.AnyRequest {
	request.Header().Set("Authorization", "Bearer "+token)
	return request
}

func (i *tokenInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		token, err := i.tokens.token(ctx, i.service, "")
		conn := next(ctx, spec)
		if err != nil {
			return failedConn{conn, err}
		}
		conn.RequestHeader().Set("Authorization", "Bearer "+token)
		return conn
	}
}

// WrapStreamingHandler does nothing: the interceptor is for clients.
func (i *tokenInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// failedConn is a stream that could not get an access token.
type failedConn struct {
	connect.StreamingClientConn

	err error
}

func (c failedConn) Send(any) error       { return c.err }
func (c failedConn) Receive(any) error    { return c.err }
func (c failedConn) CloseRequest() error  { return nil }
func (c failedConn) CloseResponse() error { return nil }
