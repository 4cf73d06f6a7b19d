package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// fakeTokenService issues numbered access tokens.
type fakeTokenService struct {
	statev1connect.UnimplementedTokenServiceHandler

	mu      sync.Mutex
	issued  int
	revoked bool
	now     time.Time
}

func (s *fakeTokenService) ExchangeToken(
	_ context.Context, r *connect.Request[statev1.ExchangeTokenRequest],
) (*connect.Response[statev1.ExchangeTokenResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Header().Get("Authorization") != "Bearer personal" || s.revoked {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("the personal access token is revoked"))
	}
	s.issued++
	return connect.NewResponse(&statev1.ExchangeTokenResponse{
		AccessToken: fmt.Sprintf("%s-%d", r.Msg.GetAudience()[0], s.issued),
		ExpiresAt:   timestamppb.New(s.now.Add(5 * time.Minute)),
	}), nil
}

// fixture has a client of another service, which returns the token of each call and rejects chosen
// tokens.
type fixture struct {
	tokens *fakeTokenService
	api    *API
	unary  *connect.Client[emptypb.Empty, wrapperspb.StringValue]
	stream *connect.Client[emptypb.Empty, wrapperspb.StringValue]

	mu     sync.Mutex
	reject map[string]bool
	calls  int
}

func setup(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{tokens: &fakeTokenService{now: time.Now()}, reject: map[string]bool{}}
	mux := http.NewServeMux()
	mux.Handle(statev1connect.NewTokenServiceHandler(f.tokens))
	authenticate := func(h http.Header) (*wrapperspb.StringValue, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.calls++
		if f.reject[h.Get("Authorization")] || f.reject["all"] {
			return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("the access token has expired"))
		}
		return wrapperspb.String(h.Get("Authorization")), nil
	}
	mux.Handle(
		"/x/unary",
		connect.NewUnaryHandler(
			"/x/unary",
			func(_ context.Context, r *connect.Request[emptypb.Empty]) (*connect.Response[wrapperspb.StringValue], error) {
				token, err := authenticate(r.Header())
				if err != nil {
					return nil, err
				}
				return connect.NewResponse(token), nil
			},
		),
	)
	mux.Handle(
		"/x/watch",
		connect.NewServerStreamHandler(
			"/x/watch",
			func(_ context.Context, r *connect.Request[emptypb.Empty], s *connect.ServerStream[wrapperspb.StringValue]) error {
				token, err := authenticate(r.Header())
				if err != nil {
					return err
				}
				return s.Send(token)
			},
		),
	)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	f.api = New(server.Client(), server.URL+"/", "personal")
	f.api.access.now = func() time.Time {
		f.tokens.mu.Lock()
		defer f.tokens.mu.Unlock()
		return f.tokens.now
	}
	f.unary = connect.NewClient[emptypb.Empty, wrapperspb.StringValue](
		server.Client(), server.URL+"/x/unary", f.api.ClientOption("deploys"),
	)
	f.stream = connect.NewClient[emptypb.Empty, wrapperspb.StringValue](
		server.Client(), server.URL+"/x/watch", f.api.ClientOption("deploys"),
	)
	return f
}

func (f *fixture) advance(d time.Duration) {
	f.tokens.mu.Lock()
	defer f.tokens.mu.Unlock()
	f.tokens.now = f.tokens.now.Add(d)
}

func (f *fixture) call(t *testing.T) (string, error) {
	t.Helper()
	response, err := f.unary.CallUnary(t.Context(), connect.NewRequest(&emptypb.Empty{}))
	if err != nil {
		return "", err
	}
	return response.Msg.GetValue(), nil
}

func (f *fixture) watch(t *testing.T) (string, error) {
	t.Helper()
	stream, err := f.stream.CallServerStream(t.Context(), connect.NewRequest(&emptypb.Empty{}))
	if err != nil {
		return "", err
	}
	defer stream.Close()
	if !stream.Receive() {
		return "", stream.Err()
	}
	return stream.Msg().GetValue(), nil
}

func TestAccessTokenIsReusedUntilItExpires(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for i, want := range []string{"deploys-1", "deploys-1", "deploys-2", "deploys-2", "deploys-3"} {
		token, err := f.call(t)
		require.NoError(t, err)
		require.Equal(t, "Bearer "+want, token, "call %d", i)
		token, err = f.watch(t)
		require.NoError(t, err)
		require.Equal(t, "Bearer "+want, token)
		f.advance(2*time.Minute + time.Second) // two advances leave less than a minute
	}
	relay, err := f.api.access.token(t.Context(), "relay", "")
	require.NoError(t, err)
	require.Equal(t, "relay-4", relay, "each service has its own token")
}

func TestConcurrentCallsExchangeOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var calls sync.WaitGroup
	results := make(chan string, 20)
	for range cap(results) {
		calls.Go(func() {
			token, err := f.call(t)
			if err != nil {
				token = err.Error()
			}
			results <- token
		})
	}
	calls.Wait()
	for range cap(results) {
		require.Equal(t, "Bearer deploys-1", <-results)
	}
}

func TestRefusedTokenIsExchangedOnceMore(t *testing.T) {
	t.Parallel()
	f := setup(t)
	_, err := f.call(t)
	require.NoError(t, err)
	f.reject["Bearer deploys-1"] = true
	token, err := f.call(t)
	require.NoError(t, err)
	require.Equal(t, "Bearer deploys-2", token)
	f.reject["all"], f.calls = true, 0
	_, err = f.call(t)
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
	require.ErrorContains(t, err, "the access token has expired")
	require.Equal(t, 2, f.calls, "exchanged only once")
}

func TestMissingPersonalAccessTokenIsAnError(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.tokens.revoked = true
	_, err := f.call(t)
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
	require.ErrorContains(t, err, "the personal access token is revoked")
	_, err = f.watch(t)
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
	require.ErrorContains(t, err, "the personal access token is revoked")
	require.Zero(t, f.calls, "the service is not called")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.api.access.cached("deploys").lock <- struct{}{}
	_, err = f.api.access.token(ctx, "deploys", "")
	require.Equal(t, errcode.Canceled, fault.CodeOf(err))
}
