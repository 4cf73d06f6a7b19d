package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	relayv1 "lockstep.internal/schemas/gen/lockstep/relay/v1"
	"lockstep.internal/schemas/gen/lockstep/relay/v1/relayv1connect"
	"lockstep.internal/services/relay/api"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// callers accepts the Authorization header as the subject.
type callers struct{}

func (callers) Caller(header http.Header) (policy.Caller, error) {
	if header.Get("Authorization") == "" {
		return policy.Caller{}, fault.New(errcode.Unauthenticated, "no token")
	}
	return policy.Caller{Subject: header.Get("Authorization"), Scope: access.ScopeAdmin}, nil
}

// fixture is a client of the API, with a registry and a fake cluster. Agents 7 and 8 are in project 3, agent 9 is in
// project 4. A caller may access 7 and 9.
type fixture struct {
	relayv1connect.RelayServiceClient

	queries []url.Values
	cluster func(query url.Values) (int, string)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	r := registry.New()
	put := func(key string, value any) {
		raw, err := json.Marshal(value)
		require.NoError(t, err)
		require.NoError(t, r.Put(key, raw))
	}
	for _, id := range []string{"a", "b"} {
		relay := registry.Relay{ID: id, URL: "ws://" + id + ":8087", Version: "1.0"}
		put(relay.Key(), relay)
	}
	for _, c := range []registry.Connection{
		{AgentID: 9, ID: 1, RelayID: "a", ProjectID: 4},
		{AgentID: 7, ID: 5, RelayID: "b", ProjectID: 3, PodName: "agent-1", ConnectedAt: time.Unix(1, 0)},
		{AgentID: 7, ID: 4, RelayID: "a", ProjectID: 3},
		{AgentID: 8, ID: 6, RelayID: "a", ProjectID: 3},
		{AgentID: 7, ID: 2, RelayID: "killed", ProjectID: 3},
	} {
		put(c.Key(), c)
	}
	f := &fixture{}
	mayRead := func(_ policy.Caller, agent int64) error {
		if agent == 7 || agent == 9 {
			return nil
		}
		return fault.New(errcode.NotFound, "agent %d does not exist", agent)
	}
	server := httptest.NewServer(api.NewHandler(api.Dependencies{
		Registry: r, Callers: callers{}, MayRead: mayRead, Logger: slog.New(slog.DiscardHandler),
		Get: func(
			_ context.Context, caller policy.Caller, agent, _ int64, path, accept string, read func(*http.Response) error,
		) error {
			if err := mayRead(caller, agent); err != nil {
				return err
			}
			u, err := url.Parse(path)
			require.NoError(t, err)
			require.Equal(t, "/api/v1/pods", u.Path)
			require.Contains(t, accept, "PartialObjectMetadataList")
			f.queries = append(f.queries, u.Query())
			status, body := f.cluster(u.Query())
			return read(&http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body))})
		},
	}))
	t.Cleanup(server.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	f.RelayServiceClient = relayv1connect.NewRelayServiceClient(&http.Client{Transport: transport}, server.URL)
	return f
}

// newRequest returns a request of the service ci.
func newRequest[T any](message *T) *connect.Request[T] {
	r := connect.NewRequest(message)
	r.Header().Set("Authorization", "ci")
	return r
}

func TestRequestIsRefusedBeforeItsBodyIsRead(t *testing.T) {
	t.Parallel()
	handler := api.NewHandler(api.Dependencies{Callers: callers{}, Logger: slog.New(slog.DiscardHandler)})
	r := httptest.NewRequest(http.MethodPost, relayv1connect.RelayServiceListRelaysProcedure,
		iotest.ErrReader(errors.New("the body was read")))
	r.Header.Set("Content-Type", "application/proto")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	require.Equal(t, http.StatusUnauthorized, w.Code)
	require.NotContains(t, w.Body.String(), "body")
}

func TestLargeRequestIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.ListRelays(t.Context(), newRequest(&relayv1.ListRelaysRequest{}))
	require.NoError(t, err)
	handler := api.NewHandler(api.Dependencies{Callers: callers{}, Logger: slog.New(slog.DiscardHandler)})
	r := httptest.NewRequest(http.MethodPost, relayv1connect.RelayServiceListRelaysProcedure,
		strings.NewReader(strings.Repeat("x", 1<<20)))
	r.Header.Set("Content-Type", "application/proto")
	r.Header.Set("Authorization", "ci")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	require.Contains(t, w.Body.String(), "the request body is larger than 65536 bytes")
}

func TestConnectedAgents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ofProject := func(id int64) *connect.Request[relayv1.ConnectedAgentsForProjectRequest] {
		return newRequest(&relayv1.ConnectedAgentsForProjectRequest{ProjectId: id})
	}
	project, err := f.ConnectedAgentsForProject(t.Context(), ofProject(3))
	require.NoError(t, err)
	describe := func(agents []*relayv1.ConnectedAgent) (out []string) {
		for _, a := range agents {
			out = append(out,
				fmt.Sprint(a.GetAgentId(), a.GetConnectionId(), a.GetRelay().GetId(), a.GetRelay().GetUrl(), a.GetPodName()))
		}
		return out
	}
	want := []string{"7 4a" + "ws://a:8087", "7 5b" + "ws://b:8087" + "agent-1"}
	require.Equal(t, want, describe(project.Msg.GetAgents()), "without agent 8 and the connection of a dead relay")
	one, err := f.ConnectedAgentsById(t.Context(), newRequest(&relayv1.ConnectedAgentsByIdRequest{AgentId: 7}))
	require.NoError(t, err)
	require.Equal(t, describe(project.Msg.GetAgents()), describe(one.Msg.GetAgents()))
	none, err := f.ConnectedAgentsForProject(t.Context(), ofProject(99))
	require.NoError(t, err)
	require.Empty(t, none.Msg.GetAgents())
	_, err = f.ConnectedAgentsById(t.Context(), newRequest(&relayv1.ConnectedAgentsByIdRequest{AgentId: 8}))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	_, err = f.ConnectedAgentsForProject(t.Context(), ofProject(0))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	relays, err := f.ListRelays(t.Context(), newRequest(&relayv1.ListRelaysRequest{}))
	require.NoError(t, err)
	require.Len(t, relays.Msg.GetRelays(), 2)
}

func TestUnauthenticatedCallersAreRejected(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, errProject := f.ConnectedAgentsForProject(t.Context(),
		connect.NewRequest(&relayv1.ConnectedAgentsForProjectRequest{ProjectId: 3}))
	_, errAgent := f.ConnectedAgentsById(t.Context(), connect.NewRequest(&relayv1.ConnectedAgentsByIdRequest{AgentId: 7}))
	_, errRelays := f.ListRelays(t.Context(), connect.NewRequest(&relayv1.ListRelaysRequest{}))
	_, errPods := f.GetPods(t.Context(), connect.NewRequest(&relayv1.GetPodsRequest{AgentId: 7}))
	for _, err := range []error{errProject, errAgent, errRelays, errPods} {
		require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err))
	}
}

func TestPodsOfAllPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.cluster = func(query url.Values) (int, string) {
		if query.Get("continue") == "" {
			return 200, `{"metadata":{"continue":"a&b"},"items":[{"metadata":{"namespace":"shop","name":"web"}},{"metadata":{"namespace":"apps","name":"web"}}]}`
		}
		require.Equal(t, "a&b", query.Get("continue"))
		return 200, `{"items":[{"metadata":{"namespace":"apps","name":"db"}}]}`
	}
	pods, err := f.GetPods(t.Context(), newRequest(&relayv1.GetPodsRequest{AgentId: 7}))
	require.NoError(t, err)
	var names []string
	for _, p := range pods.Msg.GetPods() {
		names = append(names, p.GetNamespace()+"/"+p.GetName())
	}
	require.Equal(t, []string{"apps/db", "apps/web", "shop/web"}, names)
	require.Len(t, f.queries, 2)
	for _, query := range f.queries {
		require.Equal(t, "status.phase=Running", query.Get("fieldSelector"))
	}
}

func TestGetPodsErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status  int
		body    string
		code    connect.Code
		wantErr string
	}{
		"denied":             {403, `{"message":"pods is forbidden"}`, connect.CodePermissionDenied, "pods is forbidden"},
		"error":              {500, `{"message":"etcd is unavailable"}`, connect.CodeUnavailable, "etcd is unavailable"},
		"error without JSON": {502, `<html>`, connect.CodeUnavailable, "502"},
		"not JSON":           {200, `hello`, connect.CodeUnavailable, "returned an invalid list of pods"},
		"name too long": {
			200, `{"items":[{"metadata":{"namespace":"a","name":"` + strings.Repeat("x", 254) + `"}}]}`, connect.CodeUnavailable,
			"returned an invalid list of pods",
		},
		"response too large": {
			200, `{"items":[` + strings.Repeat(" ", 9<<20) + `]}`, connect.CodeUnavailable, "returned an invalid list of pods",
		},
		"endless pages": {200, `{"metadata":{"continue":"x"},"items":[]}`, connect.CodeResourceExhausted, "more than"},
		"too many pods": {
			200, `{"metadata":{"continue":"x"},"items":[` + strings.Repeat(`{},`, 1000) + `{}]}`, connect.CodeResourceExhausted,
			"more than 50000 pods",
		},
	} {
		f := newFixture(t)
		f.cluster = func(url.Values) (int, string) { return c.status, c.body }
		_, err := f.GetPods(t.Context(), newRequest(&relayv1.GetPodsRequest{AgentId: 7}))
		require.Equal(t, c.code, connect.CodeOf(err), name)
		require.ErrorContains(t, err, c.wantErr, name)
		require.LessOrEqual(t, len(f.queries), 202, name)
	}
	_, err := newFixture(t).GetPods(t.Context(), newRequest(&relayv1.GetPodsRequest{AgentId: 8}))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	_, err = newFixture(t).GetPods(t.Context(), newRequest(&relayv1.GetPodsRequest{AgentId: 7, ConnectionId: -1}))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
}
