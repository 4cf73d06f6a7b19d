package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	relayv1 "lockstep.internal/schemas/gen/lockstep/relay/v1"
	"lockstep.internal/schemas/gen/lockstep/relay/v1/relayv1connect"
	"lockstep.internal/services/relay/api"
	"lockstep.internal/services/relay/policy"
	"lockstep.internal/services/relay/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// callers are known by what they say they are.
type callers struct{}

func (callers) Caller(header http.Header) (policy.Caller, error) {
	if header.Get("Authorization") == "" {
		return policy.Caller{}, fault.New(errcode.Unauthenticated, "who are you?")
	}
	return policy.Caller{Subject: header.Get("Authorization")}, nil
}

// bed is a relay's API over a registry and a cluster that the test plays. Agents 7 and 8 are of project 3, and 9 of 4; a caller may reach 7 and 9.
type bed struct {
	relayv1connect.RelayServiceClient

	asked   []url.Values
	cluster func(query url.Values) (int, string)
}

func setup(t *testing.T) *bed {
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
	b := &bed{}
	may := func(_ policy.Caller, agent int64) error {
		if agent == 7 || agent == 9 {
			return nil
		}
		return fault.New(errcode.NotFound, "agent %d does not exist", agent)
	}
	server := httptest.NewServer(api.NewHandler(api.Dependencies{
		Registry: r, Callers: callers{}, MayRead: may, Logger: slog.New(slog.DiscardHandler),
		Get: func(_ context.Context, caller policy.Caller, agent, _ int64, path, accept string, read func(*http.Response) error) error {
			if err := may(caller, agent); err != nil {
				return err
			}
			u, err := url.Parse(path)
			require.NoError(t, err)
			require.Equal(t, "/api/v1/pods", u.Path)
			require.Contains(t, accept, "PartialObjectMetadataList")
			b.asked = append(b.asked, u.Query())
			status, body := b.cluster(u.Query())
			return read(&http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body))})
		},
	}))
	t.Cleanup(server.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	b.RelayServiceClient = relayv1connect.NewRelayServiceClient(&http.Client{Transport: transport}, server.URL)
	return b
}

func ask[T any](message *T) *connect.Request[T] {
	r := connect.NewRequest(message)
	r.Header().Set("Authorization", "ci")
	return r
}

func TestConnectedAgents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	project, err := b.ConnectedAgentsForProject(t.Context(), ask(&relayv1.ConnectedAgentsForProjectRequest{ProjectId: 3}))
	require.NoError(t, err)
	shown := func(agents []*relayv1.ConnectedAgent) (out []string) {
		for _, a := range agents {
			out = append(out, fmt.Sprint(a.GetAgentId(), a.GetConnectionId(), a.GetRelay().GetId(), a.GetRelay().GetUrl(), a.GetPodName()))
		}
		return out
	}
	require.Equal(t, []string{"7 4a" + "ws://a:8087", "7 5b" + "ws://b:8087" + "agent-1"}, shown(project.Msg.GetAgents()), "nothing of agent 8, nothing of a relay that is no more")
	one, err := b.ConnectedAgentsById(t.Context(), ask(&relayv1.ConnectedAgentsByIdRequest{AgentId: 7}))
	require.NoError(t, err)
	require.Equal(t, shown(project.Msg.GetAgents()), shown(one.Msg.GetAgents()))
	none, err := b.ConnectedAgentsForProject(t.Context(), ask(&relayv1.ConnectedAgentsForProjectRequest{ProjectId: 99}))
	require.NoError(t, err)
	require.Empty(t, none.Msg.GetAgents())
	_, err = b.ConnectedAgentsById(t.Context(), ask(&relayv1.ConnectedAgentsByIdRequest{AgentId: 8}))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	_, err = b.ConnectedAgentsForProject(t.Context(), ask(&relayv1.ConnectedAgentsForProjectRequest{}))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	relays, err := b.ListRelays(t.Context(), ask(&relayv1.ListRelaysRequest{}))
	require.NoError(t, err)
	require.Len(t, relays.Msg.GetRelays(), 2)
}

func TestNobodyIsToldNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, errProject := b.ConnectedAgentsForProject(t.Context(), connect.NewRequest(&relayv1.ConnectedAgentsForProjectRequest{ProjectId: 3}))
	_, errAgent := b.ConnectedAgentsById(t.Context(), connect.NewRequest(&relayv1.ConnectedAgentsByIdRequest{AgentId: 7}))
	_, errRelays := b.ListRelays(t.Context(), connect.NewRequest(&relayv1.ListRelaysRequest{}))
	_, errPods := b.GetPods(t.Context(), connect.NewRequest(&relayv1.GetPodsRequest{AgentId: 7}))
	for _, err := range []error{errProject, errAgent, errRelays, errPods} {
		require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err))
	}
}

func TestPodsOfAllPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cluster = func(query url.Values) (int, string) {
		if query.Get("continue") == "" {
			return 200, `{"metadata":{"continue":"a&b"},"items":[{"metadata":{"namespace":"shop","name":"web"}},{"metadata":{"namespace":"apps","name":"web"}}]}`
		}
		require.Equal(t, "a&b", query.Get("continue"))
		return 200, `{"items":[{"metadata":{"namespace":"apps","name":"db"}}]}`
	}
	pods, err := b.GetPods(t.Context(), ask(&relayv1.GetPodsRequest{AgentId: 7}))
	require.NoError(t, err)
	var names []string
	for _, p := range pods.Msg.GetPods() {
		names = append(names, p.GetNamespace()+"/"+p.GetName())
	}
	require.Equal(t, []string{"apps/db", "apps/web", "shop/web"}, names)
	require.Len(t, b.asked, 2)
}

func TestAClusterThatIsNone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		body   string
		code   connect.Code
		says   string
	}{
		"refuses":            {403, `{"message":"pods is forbidden"}`, connect.CodePermissionDenied, "pods is forbidden"},
		"fails":              {500, `{"message":"etcd is away"}`, connect.CodeUnavailable, "etcd is away"},
		"fails otherwise":    {502, `<html>`, connect.CodeUnavailable, "502"},
		"says something":     {200, `hello`, connect.CodeUnavailable, "did not respond with pods"},
		"has long names":     {200, `{"items":[{"metadata":{"namespace":"a","name":"` + strings.Repeat("x", 254) + `"}}]}`, connect.CodeUnavailable, "did not respond with pods"},
		"says too much":      {200, `{"items":[` + strings.Repeat(" ", 9<<20) + `]}`, connect.CodeUnavailable, "did not respond with pods"},
		"pages for ever":     {200, `{"metadata":{"continue":"x"},"items":[]}`, connect.CodeResourceExhausted, "more than"},
		"has very many pods": {200, `{"metadata":{"continue":"x"},"items":[` + strings.Repeat(`{},`, 1000) + `{}]}`, connect.CodeResourceExhausted, "more than 50000 pods"},
	} {
		b := setup(t)
		b.cluster = func(url.Values) (int, string) { return c.status, c.body }
		_, err := b.GetPods(t.Context(), ask(&relayv1.GetPodsRequest{AgentId: 7}))
		require.Equal(t, c.code, connect.CodeOf(err), name)
		require.ErrorContains(t, err, c.says, name)
		require.LessOrEqual(t, len(b.asked), 202, name)
	}
	_, err := setup(t).GetPods(t.Context(), ask(&relayv1.GetPodsRequest{AgentId: 8}))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	_, err = setup(t).GetPods(t.Context(), ask(&relayv1.GetPodsRequest{AgentId: 7, ConnectionId: -1}))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
}
