package access_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// serve starts a service that returns the caller: a unary method, a stream and plain HTTP.
func serve(t *testing.T, b *fixture) *httptest.Server {
	t.Helper()
	options := connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler)), b.verifier.Interceptor())
	who := func(ctx context.Context) *wrapperspb.Int64Value {
		caller, known := access.CallerFrom(ctx)
		if !known {
			return nil
		}
		return wrapperspb.Int64(caller.UserID)
	}
	mux := http.NewServeMux()
	mux.Handle(
		"/x/who",
		connect.NewUnaryHandler(
			"/x/who",
			func(ctx context.Context, _ *connect.Request[emptypb.Empty]) (*connect.Response[wrapperspb.Int64Value], error) {
				return connect.NewResponse(who(ctx)), nil
			},
			options,
		),
	)
	mux.Handle(
		"/x/watch",
		connect.NewServerStreamHandler(
			"/x/watch",
			func(ctx context.Context, _ *connect.Request[emptypb.Empty], s *connect.ServerStream[wrapperspb.Int64Value]) error {
				if err := s.Send(who(ctx)); err != nil {
					return err
				}
				<-ctx.Done()
				return ctx.Err()
			},
			options,
		),
	)
	mux.HandleFunc("/plain", func(w http.ResponseWriter, r *http.Request) {
		caller, _ := access.CallerFrom(r.Context())
		if caller.UserID == 5 {
			w.WriteHeader(http.StatusNoContent)
		}
	})
	server := httptest.NewServer(b.verifier.Handler(reject, mux))
	t.Cleanup(server.Close)
	return server
}

func reject(w http.ResponseWriter, r *http.Request, err error) {
	fault.WriteConnect(w, r, slog.New(slog.DiscardHandler), err)
}

func request(authorization ...string) *connect.Request[emptypb.Empty] {
	r := connect.NewRequest(&emptypb.Empty{})
	for _, value := range authorization {
		r.Header().Add("Authorization", value)
	}
	return r
}

func TestCallerIsAuthenticatedByToken(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	server := serve(t, b)
	mapped := connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler)))
	unary := connect.NewClient[emptypb.Empty, wrapperspb.Int64Value](server.Client(), server.URL+"/x/who", mapped)
	stream := connect.NewClient[emptypb.Empty, wrapperspb.Int64Value](server.Client(), server.URL+"/x/watch", mapped)
	for _, scheme := range []string{"Bearer ", "bearer "} {
		response, err := unary.CallUnary(t.Context(), request(scheme+b.sign(t)))
		require.NoError(t, err)
		require.Equal(t, int64(5), response.Msg.GetValue())
	}
	for name, c := range map[string]struct {
		authorization []string
		code          fault.Code
		status        int
	}{
		"nothing":        {nil, errcode.Unauthenticated, http.StatusUnauthorized},
		"another scheme": {[]string{"Basic " + b.sign(t)}, errcode.Unauthenticated, http.StatusUnauthorized},
		"no token":       {[]string{"Bearer"}, errcode.Unauthenticated, http.StatusUnauthorized},
		"two tokens": {
			[]string{"Bearer " + b.sign(t), "Bearer " + b.sign(t)}, errcode.Unauthenticated, http.StatusUnauthorized,
		},
		"blocked": {
			[]string{"Bearer " + b.sign(t, func(g *access.Grant) { g.UserID = 7 })},
			errcode.PermissionDenied,
			http.StatusForbidden,
		},
	} {
		_, err := unary.CallUnary(t.Context(), request(c.authorization...))
		require.Equal(t, c.code, fault.CodeOf(err), name)
		answers, err := stream.CallServerStream(t.Context(), request(c.authorization...))
		require.NoError(t, err)
		require.False(t, answers.Receive())
		require.Equal(t, c.code, fault.CodeOf(answers.Err()), name)
		require.NoError(t, answers.Close())
		require.Equal(t, c.status, plain(t, server, c.authorization...), name)
	}
	require.Equal(t, http.StatusNoContent, plain(t, server, "Bearer "+b.sign(t)))
}

func TestRequestIsRefusedBeforeItsBodyIsRead(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	read := errors.New("the body was read")
	for _, contentType := range []string{
		"application/proto", "application/connect+proto", "application/grpc", "text/plain",
	} {
		r := httptest.NewRequest(http.MethodPost, "/x/who", iotest.ErrReader(read))
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		b.verifier.Handler(reject, http.NotFoundHandler()).ServeHTTP(w, r)
		require.Contains(t, w.Body.String()+w.Header().Get("Grpc-Message"), "no access token was sent", contentType)
	}
}

func TestConnectHandlerWithoutAuthenticationRefuses(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	called := connect.UnaryFunc(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
		return connect.NewResponse(&emptypb.Empty{}), nil
	})
	_, err := b.verifier.Interceptor().WrapUnary(called)(t.Context(), request("Bearer "+b.sign(t)))
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(err))
}

func plain(t *testing.T, server *httptest.Server, authorization ...string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/plain", http.NoBody)
	require.NoError(t, err)
	for _, value := range authorization {
		r.Header.Add("Authorization", value)
	}
	response, err := server.Client().Do(r)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode
}

func TestStreamEndsWhenTheCallerLosesAccess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*fakeDirectory)
		code   fault.Code
	}{
		"blocked": {
			func(b *fakeDirectory) { b.users[6] = directory.User{ID: 6, Admin: true, Blocked: true} }, errcode.PermissionDenied,
		},
		"its token revoked": {
			func(b *fakeDirectory) {
				b.users[6] = directory.User{ID: 6, Admin: true, RevokedTokens: []int64{12, 11}}
			},
			errcode.Unauthenticated,
		},
		"deleted":                   {func(b *fakeDirectory) { delete(b.users, 6) }, errcode.Unauthenticated},
		"no administrator any more": {func(b *fakeDirectory) { b.users[6] = directory.User{ID: 6} }, errcode.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			answers := watch(t, b, serve(t, b))
			b.book.write(func() { b.book.users[5] = directory.User{ID: 5, Blocked: true} })
			b.book.write(func() { b.book.users[6] = directory.User{ID: 6, Admin: true, RevokedTokens: []int64{12}} })
			b.book.write(func() { c.change(b.book) })
			require.False(t, answers.Receive())
			require.Equal(t, c.code, fault.CodeOf(answers.Err()), "%v", answers.Err())
		})
	}
}

func watch(
	t *testing.T, b *fixture, server *httptest.Server, change ...func(*access.Grant),
) *connect.ServerStreamForClient[wrapperspb.Int64Value] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	client := connect.NewClient[emptypb.Empty, wrapperspb.Int64Value](server.Client(), server.URL+"/x/watch",
		connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler))))
	answers, err := client.CallServerStream(
		ctx, request("Bearer "+b.sign(t, append(change, func(g *access.Grant) {
			g.UserID, g.Admin, g.TokenID = 6, true, 11
		})...)),
	)
	require.NoError(t, err)
	t.Cleanup(func() { _ = answers.Close() })
	require.True(t, answers.Receive(), "%v", answers.Err())
	require.Equal(t, int64(6), answers.Msg().GetValue())
	return answers
}

func TestStreamEndsAfterItsLifetime(t *testing.T) {
	t.Parallel()
	// The lifetime is long enough to open a stream on a slow machine.
	b := newFixture(t, func(c *access.Config) { c.StreamLifetime = 3 * time.Second })
	answers := watch(t, b, serve(t, b))
	require.False(t, answers.Receive())
	require.Equal(t, errcode.Unavailable, fault.CodeOf(answers.Err()))
	require.ErrorContains(t, answers.Err(), "reconnect")
}

func TestStreamEndsWithItsPersonalAccessToken(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	// The lifetime is long enough to open a stream on a slow machine.
	answers := watch(t, b, serve(t, b), func(g *access.Grant) { g.TokenExpiresAt = b.now.Add(3 * time.Second) })
	require.False(t, answers.Receive())
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(answers.Err()))
	require.ErrorContains(t, answers.Err(), "the token has expired")
}

func TestHandlerRequiresTheScopeOfTheProcedure(t *testing.T) {
	t.Parallel()
	b := newFixture(t, func(c *access.Config) { c.Scopes = access.Scopes{"/x/who": access.ScopeWrite} })
	server := serve(t, b)
	client := connect.NewClient[emptypb.Empty, wrapperspb.Int64Value](server.Client(), server.URL+"/x/who",
		connect.WithInterceptors(fault.NewInterceptor(slog.New(slog.DiscardHandler))))
	for scope, code := range map[access.Scope]fault.Code{
		access.ScopeRead: errcode.PermissionDenied, access.ScopeWrite: "", access.ScopeAdmin: "", "": "",
		"other": errcode.Unauthenticated,
	} {
		_, err := client.CallUnary(t.Context(), request("Bearer "+b.sign(t, func(g *access.Grant) { g.Scope = scope })))
		require.Equal(t, code, fault.CodeOf(err), "%s: %v", scope, err)
	}
}

// roles are of user 5: reader of agent 1, owner of agent 2.
type roles struct{}

func (roles) AgentRole(user, agent int64) directory.Role {
	return map[[2]int64]directory.Role{{5, 1}: directory.RoleReader, {5, 2}: directory.RoleOwner}[[2]int64{user, agent}]
}

func (roles) Agents(int64, directory.Role) []int64 { return []int64{1, 2} }

func TestRequireAgentRole(t *testing.T) {
	t.Parallel()
	five, admin := access.WithCaller(t.Context(), access.Caller{UserID: 5}), access.WithCaller(
		t.Context(), access.Caller{UserID: 6, Admin: true},
	)
	for name, c := range map[string]struct {
		ctx   context.Context
		agent int64
		least directory.Role
		code  fault.Code
	}{
		"reads":                    {five, 1, directory.RoleReader, ""},
		"owns":                     {five, 2, directory.RoleMaintainer, ""},
		"reads, may not do":        {five, 1, directory.RoleMaintainer, errcode.PermissionDenied},
		"may not know":             {five, 3, directory.RoleReader, errcode.NotFound},
		"an administrator":         {admin, 3, directory.RoleOwner, ""},
		"nobody":                   {t.Context(), 1, directory.RoleReader, errcode.NotFound},
		"a role that there is not": {five, 2, directory.RoleNone, errcode.PermissionDenied},
	} {
		require.Equal(t, c.code, fault.CodeOf(access.RequireAgentRole(c.ctx, roles{}, c.agent, c.least, "rollout x")), name)
	}
	agents, all := access.AgentsWithRole(five, roles{}, directory.RoleReader)
	require.False(t, all)
	require.Equal(t, []int64{1, 2}, agents)
	_, all = access.AgentsWithRole(admin, roles{}, directory.RoleReader)
	require.True(t, all)
	agents, all = access.AgentsWithRole(t.Context(), roles{}, directory.RoleReader)
	require.False(t, all)
	require.Empty(t, agents)
	require.NoError(t, access.RequireAdministrator(admin))
	require.Equal(t, errcode.PermissionDenied, fault.CodeOf(access.RequireAdministrator(five)))
	require.Equal(t, errcode.Unauthenticated, fault.CodeOf(access.RequireAdministrator(t.Context())))
	require.NotErrorIs(t, access.RequireAdministrator(five), access.RequireAdministrator(t.Context()))
}

func TestHandlerForNeedsOneScopeForAllPaths(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	handler := b.verifier.HandlerFor(access.ScopeWrite, reject, next)
	for scope, want := range map[access.Scope]int{
		access.ScopeRead: http.StatusForbidden, access.ScopeWrite: http.StatusNoContent,
		access.ScopeAdmin: http.StatusNoContent,
	} {
		for _, path := range []string{"/x/who", "/files/7"} {
			r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
			r.Header.Set("Authorization", "Bearer "+b.sign(t, func(g *access.Grant) { g.Scope = scope }))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			require.Equal(t, want, w.Code, "%s with the scope %s", path, scope)
		}
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/files/7", http.NoBody))
	require.Equal(t, http.StatusUnauthorized, w.Code)
}
