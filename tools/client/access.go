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

// renewal is how much of its life an access token has left when it is exchanged anew.
const renewal = time.Minute

// accessTokens are those of one user, by service. They are exchanged when they are needed, and kept
// while they are good.
type accessTokens struct {
	source statev1connect.TokenServiceClient
	now    func() time.Time

	mu   sync.Mutex
	kept map[string]*keptToken
}

// keptToken is the access token for one service. Who holds turn may change it.
type keptToken struct {
	turn    chan struct{} // has one element, for who may exchange
	value   string
	expires time.Time
}

func newAccessTokens(source statev1connect.TokenServiceClient) *accessTokens {
	return &accessTokens{source: source, now: time.Now, kept: map[string]*keptToken{}}
}

func (a *accessTokens) of(service string) *keptToken {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.kept[service]
	if k == nil {
		k = &keptToken{turn: make(chan struct{}, 1)}
		a.kept[service] = k
	}
	return k
}

// token returns a token for the service, but not the one that it has refused. One call exchanges,
// others wait for it.
func (a *accessTokens) token(ctx context.Context, service, refused string) (string, error) {
	k := a.of(service)
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return "", fault.From(context.Cause(ctx))
	}
	if k.value != "" && k.value != refused && a.now().Add(renewal).Before(k.expires) {
		return k.value, nil
	}
	made, err := a.exchange(ctx, service)
	if err != nil {
		return "", err
	}
	k.value, k.expires = made.Value, made.ExpiresAt
	return k.value, nil
}

func (a *accessTokens) exchange(ctx context.Context, service string) (AccessToken, error) {
	answer, err := a.source.ExchangeToken(
		ctx, connect.NewRequest(&statev1.ExchangeTokenRequest{Audience: []string{service}}),
	)
	if err != nil {
		return AccessToken{}, fmt.Errorf("get an access token for the service %s: %w", service, err)
	}
	return AccessToken{Value: answer.Msg.GetAccessToken(), ExpiresAt: answer.Msg.GetExpiresAt().AsTime()}, nil
}

// AccessToken is what a service accepts.
type AccessToken struct {
	Value     string
	ExpiresAt time.Time
}

// AccessToken exchanges the personal access token for one that the service accepts. Errors are
// faults.
func (a *API) AccessToken(ctx context.Context, service string) (AccessToken, error) {
	return a.access.exchange(ctx, service)
}

// For are the options of a client of another service, such as deploys: it presents access tokens of
// the same user, which are exchanged and renewed as needed, and its errors are faults. A token that
// the service refuses is exchanged once more before the call fails; a stream is begun with a good
// one, and is the caller's to begin again where the service ends it with the code unavailable.
func (a *API) For(service string) connect.ClientOption {
	return connect.WithInterceptors(faults(), &presenter{tokens: a.access, service: service})
}

type presenter struct {
	tokens  *accessTokens
	service string
}

func (p *presenter) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		token, err := p.tokens.token(ctx, p.service, "")
		if err != nil {
			return nil, err
		}
		response, err := next(ctx, presenting(request, token))
		if !fault.Is(err, errcode.Unauthenticated) {
			return response, err
		}
		if token, err = p.tokens.token(ctx, p.service, token); err != nil {
			return nil, err
		}
		return next(ctx, presenting(request, token))
	}
}

func presenting(request connect.AnyRequest, token string) connect.AnyRequest {
	request.Header().Set("Authorization", "Bearer "+token)
	return request
}

func (p *presenter) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		token, err := p.tokens.token(ctx, p.service, "")
		conn := next(ctx, spec)
		if err != nil {
			return refusedConn{conn, err}
		}
		conn.RequestHeader().Set("Authorization", "Bearer "+token)
		return conn
	}
}

// WrapStreamingHandler is for servers only, which this interceptor is not.
func (p *presenter) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// refusedConn is a stream that was not begun, since there is no token for it.
type refusedConn struct {
	connect.StreamingClientConn

	err error
}

func (c refusedConn) Send(any) error       { return c.err }
func (c refusedConn) Receive(any) error    { return c.err }
func (c refusedConn) CloseRequest() error  { return nil }
func (c refusedConn) CloseResponse() error { return nil }
