package route_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDecisions(t *testing.T) {
	t.Parallel()
	here, alsoHere, there, alsoThere := registry.Connection{ID: 1, RelayID: "me"}, registry.Connection{ID: 2, RelayID: "me"}, registry.Connection{ID: 3, RelayID: "b"}, registry.Connection{ID: 4, RelayID: "c"}
	all := []registry.Connection{there, here, alsoThere, alsoHere}
	last := func(n int) int { return n - 1 }
	for name, c := range map[string]struct {
		connections []registry.Connection
		wanted      int64
		tried       map[int64]bool
		want        route.Decision
	}{
		"nobody is connected":               {nil, 0, nil, route.Decision{}},
		"a connection of this relay":        {all, 0, nil, route.Decision{Connection: &alsoHere, Local: true}},
		"the other one":                     {all, 0, map[int64]bool{2: true}, route.Decision{Connection: &here, Local: true}},
		"another relay's, none is left":     {all, 0, map[int64]bool{1: true, 2: true}, route.Decision{Connection: &alsoThere}},
		"all were tried":                    {all, 0, map[int64]bool{1: true, 2: true, 3: true, 4: true}, route.Decision{}},
		"the only one that will do":         {all, 3, nil, route.Decision{Connection: &there}},
		"the only one that will do is gone": {all, 5, nil, route.Decision{}},
		"the only one was tried":            {all, 3, map[int64]bool{3: true}, route.Decision{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, route.Decide(c.connections, "me", c.wanted, c.tried, last))
		})
	}
}

func TestInstructions(t *testing.T) {
	t.Parallel()
	good := route.Destination{AgentID: 7, ConnectionID: 1 << 62, Target: "db-1", Trace: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}
	read, err := route.Decode(good.Encode())
	require.NoError(t, err)
	require.Equal(t, good, read)
	for _, head := range []string{
		``, `[]`, `{}`, `{"agent_id":7,"target":"db"}`, `{"agent_id":7,"connection_id":1,"target":"10.0.0.1:22"}`, `{"agent_id":7,"connection_id":1,"target":""}`,
		`{"agent_id":-7,"connection_id":1,"target":"db"}`, `{"agent_id":7,"connection_id":1,"target":"db","trace":"x"}`,
	} {
		_, err := route.Decode([]byte(head))
		require.Error(t, err, head)
	}
}

func FuzzInstruction(f *testing.F) {
	f.Add([]byte(`{"agent_id":7,"connection_id":1,"target":"db"}`))
	f.Fuzz(func(t *testing.T, head []byte) {
		i, err := route.Decode(head)
		if err != nil {
			return
		}
		again, err := route.Decode(i.Encode())
		require.NoError(t, err)
		require.Equal(t, i, again)
	})
}
