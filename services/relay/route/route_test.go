package route_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestDecisions(t *testing.T) {
	t.Parallel()
	local1, local2 := registry.Connection{ID: 1, RelayID: "self"}, registry.Connection{ID: 2, RelayID: "self"}
	remote3, remote4 := registry.Connection{ID: 3, RelayID: "b"}, registry.Connection{ID: 4, RelayID: "c"}
	all := []registry.Connection{remote3, local1, remote4, local2}
	last := func(n int) int { return n - 1 }
	for name, c := range map[string]struct {
		connections []registry.Connection
		wanted      int64
		tried       map[int64]bool
		want        route.Decision
	}{
		"no connection":              {nil, 0, nil, route.Decision{}},
		"a connection of this relay": {all, 0, nil, route.Decision{Connection: &local2, Local: true}},
		"one local connection was tried": {
			all, 0, map[int64]bool{2: true}, route.Decision{Connection: &local1, Local: true},
		},
		"all local connections were tried": {
			all, 0, map[int64]bool{1: true, 2: true}, route.Decision{Connection: &remote4},
		},
		"all were tried":             {all, 0, map[int64]bool{1: true, 2: true, 3: true, 4: true}, route.Decision{}},
		"one connection is required": {all, 3, nil, route.Decision{Connection: &remote3}},
		"the required one is gone":   {all, 5, nil, route.Decision{}},
		"the required one was tried": {all, 3, map[int64]bool{3: true}, route.Decision{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, route.Decide(c.connections, "self", c.wanted, c.tried, last))
		})
	}
}

func TestDestination(t *testing.T) {
	t.Parallel()
	valid := route.Destination{AgentID: 7, ConnectionID: 1 << 62, Target: "db-1"}
	read, err := route.Decode(valid.Encode())
	require.NoError(t, err)
	require.Equal(t, valid, read)
	for _, metadata := range []string{
		``, `[]`, `{}`, `{"agent_id":7,"target":"db"}`, `{"agent_id":7,"connection_id":1,"target":"10.0.0.1:22"}`,
		`{"agent_id":7,"connection_id":1,"target":""}`,
		`{"agent_id":-7,"connection_id":1,"target":"db"}`,
	} {
		_, err := route.Decode([]byte(metadata))
		require.Error(t, err, metadata)
	}
}

func TestWorkspaces(t *testing.T) {
	t.Parallel()
	want := route.Workspace{Service: "hello", Namespace: "ws-7-hello", Port: 60022}
	got, is := route.ParseWorkspace("hello.ws-7-hello:60022")
	require.True(t, is)
	require.Equal(t, want, got)
	valid := route.Destination{AgentID: 7, ConnectionID: 1, Target: want.String()}
	read, err := route.Decode(valid.Encode())
	require.NoError(t, err)
	require.Equal(t, valid, read)
	for _, target := range []string{
		"", "kubernetes", "hello", "hello:80", ".ws:80", "hello.:80", "hello.ws", "hello.ws:", "hello.ws:0", "hello.ws:080",
		"hello.ws:65536", "hello.ws:+80", "Hello.ws:80", "hello.ws.svc:80", "hello.ws:80:80", "127.0.0.1:80", "[::1]:80",
		"hello.ws/x:80", "*.ws:80", "hello.ws:80 ",
	} {
		require.False(t, route.IsWorkspace(target), target)
	}
}

func FuzzDestination(f *testing.F) {
	f.Add([]byte(`{"agent_id":7,"connection_id":1,"target":"db"}`))
	f.Fuzz(func(t *testing.T, metadata []byte) {
		d, err := route.Decode(metadata)
		if err != nil {
			return
		}
		again, err := route.Decode(d.Encode())
		require.NoError(t, err)
		require.Equal(t, d, again)
	})
}
