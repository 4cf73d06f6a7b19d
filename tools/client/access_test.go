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

// exchange is a state that numbers the tokens it gives out.
type exchange struct {
	statev1connect.UnimplementedTokenServiceHandler

	mu      sync.Mutex
	given   int
	refuses bool
	now     time.Time
}

func (e *exchange) ExchangeToken(
	_ context.Context, r *connect.Request[statev1.ExchangeTokenRequest],
) (*connect.Response[statev1.ExchangeTokenResponse], error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Header().Get("Authorization") != "Bearer personal" || e.refuses {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("the personal access token is revoked"))
	}
	e.given++
	return connect.NewResponse(&statev1.ExchangeTokenResponse{
		AccessToken: fmt.Sprintf("%s-%d", r.Msg.GetAudience()[0], e.given),
		ExpiresAt:   timestamppb.New(e.now.Add(5 * time.Minute)),
	}), nil
}

// bundle is a client of another service, which says what it was called with and accepts only what
// it is told to.
type bundle struct {
	state  *exchange
	api    *API
	unary  *connect.Client[emptypb.Empty, wrapperspb.StringValue]
	stream *connect.Client[emptypb.Empty, wrapperspb.StringValue]

	mu     sync.Mutex
	refuse map[string]bool
	calls  int
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{state: &exchange{now: time.Now()}, refuse: map[string]bool{}}
	mux := http.NewServeMux()
	mux.Handle(statev1connect.NewTokenServiceHandler(b.state))
	admit := func(h http.Header) (*wrapperspb.StringValue, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.calls++
		if b.refuse[h.Get("Authorization")] || b.refuse["all"] {
			return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("the access token is over"))
		}
		return wrapperspb.String(h.Get("Authorization")), nil
	}
	mux.Handle(
		"/x/who",
		connect.NewUnaryHandler(
			"/x/who",
			func(_ context.Context, r *connect.Request[emptypb.Empty]) (*connect.Response[wrapperspb.StringValue], error) {
				who, err := admit(r.Header())
				if err != nil {
					return nil, err
				}
				return connect.NewResponse(who), nil
			},
		),
	)
	mux.Handle(
		"/x/watch",
		connect.NewServerStreamHandler(
			"/x/watch",
			func(_ context.Context, r *connect.Request[emptypb.Empty], s *connect.ServerStream[wrapperspb.StringValue]) error {
				who, err := admit(r.Header())
				if err != nil {
					return err
				}
				return s.Send(who)
			},
		),
	)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	b.api = New(server.Client(), server.URL+"/", "personal")
	b.api.access.now = func() time.Time {
		b.state.mu.Lock()
		defer b.state.mu.Unlock()
		return b.state.now
	}
	b.unary = connect.NewClient[emptypb.Empty, wrapperspb.StringValue](
		server.Client(), server.URL+"/x/who", b.api.For("deploys"),
	)
	b.stream = connect.NewClient[emptypb.Empty, wrapperspb.StringValue](
		server.Client(), server.URL+"/x/watch", b.api.For("deploys"),
	)
	return b
}

func (b *bundle) pass(d time.Duration) {
	b.state.mu.Lock()
	defer b.state.mu.Unlock()
	b.state.now = b.state.now.Add(d)
}

func (b *bundle) call(t *testing.T) (string, error) {
	t.Helper()
	response, err := b.unary.CallUnary(t.Context(), connect.NewRequest(&emptypb.Empty{}))
	if err != nil {
		return "", err
	}
	return response.Msg.GetValue(), nil
}

func (b *bundle) watch(t *testing.T) (string, error) {
	t.Helper()
	answers, err := b.stream.CallServerStream(t.Context(), connect.NewRequest(&emptypb.Empty{}))
	if err != nil {
		return "", err
	}
	defer answers.Close()
	if !answers.Receive() {
		return "", answers.Err()
	}
	return answers.Msg().GetValue(), nil
}

func TestAnAccessTokenIsKeptWhileItIsGood(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for at, want := range []string{"deploys-1", "deploys-1", "deploys-2", "deploys-2", "deploys-3"} {
		who, err := b.call(t)
		require.NoError(t, err)
		require.Equal(t, "Bearer "+want, who, "%d", at)
		who, err = b.watch(t)
		require.NoError(t, err)
		require.Equal(t, "Bearer "+want, who)
		b.pass(2*time.Minute + time.Second) // after two of these it has less than a minute left
	}
	relay, err := b.api.access.token(t.Context(), "relay", "")
	require.NoError(t, err)
	require.Equal(t, "relay-4", relay, "each service has its own")
}

func TestOneOfManyCallsExchanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var calling sync.WaitGroup
	answers := make(chan string, 20)
	for range cap(answers) {
		calling.Go(func() {
			who, err := b.call(t)
			if err != nil {
				who = err.Error()
			}
			answers <- who
		})
	}
	calling.Wait()
	for range cap(answers) {
		require.Equal(t, "Bearer deploys-1", <-answers)
	}
}

func TestATokenThatIsRefusedIsExchangedOnceMore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.call(t)
	require.NoError(t, err)
	b.refuse["Bearer deploys-1"] = true
	who, err := b.call(t)
	require.NoError(t, err)
	require.Equal(t, "Bearer deploys-2", who)
	b.refuse["all"], b.calls = true, 0
	_, err = b.call(t)
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
	require.ErrorContains(t, err, "the access token is over")
	require.Equal(t, 2, b.calls, "not for ever")
}

func TestWithoutAPersonalAccessTokenThereIsNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.state.refuses = true
	_, err := b.call(t)
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
	require.ErrorContains(t, err, "the personal access token is revoked")
	_, err = b.watch(t)
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
	require.ErrorContains(t, err, "the personal access token is revoked")
	require.Zero(t, b.calls, "the service is not even asked")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.api.access.of("deploys").turn <- struct{}{}
	_, err = b.api.access.token(ctx, "deploys", "")
	require.Equal(t, errcode.Canceled, fault.CodeOf(err))
}
