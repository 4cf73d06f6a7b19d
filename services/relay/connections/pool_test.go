package connections_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fixture is two relays that share a registry.
type fixture struct {
	t        *testing.T
	registry *registry.Registry
	relays   map[string]*connections.Pool
	// partitioned reports whether the relays cannot reach each other.
	partitioned atomic.Bool
	// silent reports whether the relays do not respond to each other.
	silent atomic.Bool
	// refused counts requests that may not wait.
	refused atomic.Int64
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, registry: registry.New(), relays: map[string]*connections.Pool{}}
	for _, id := range []string{"a", "b"} {
		value, err := json.Marshal(registry.Relay{URL: "https://" + id})
		require.NoError(t, err)
		require.NoError(t, f.registry.Put("relay."+id, value))
		f.relays[id] = connections.NewPool(connections.Config{
			Self: id, Registry: f.registry, Peer: f.peer, MaxWaiting: 2, Refused: func() { f.refused.Add(1) },
		})
	}
	return f
}

// session connects two sessions and returns the first; accept serves the streams of the second.
func (f *fixture) session(accept func(*tunnel.Stream)) *tunnel.Session {
	near, far := net.Pipe()
	sessions := []*tunnel.Session{
		tunnel.NewSession(near, false, true, tunnel.Config{}, nil),
		tunnel.NewSession(far, true, true, tunnel.Config{}, accept),
	}
	var serving sync.WaitGroup
	for _, s := range sessions {
		serving.Go(func() { _ = s.Serve() })
	}
	f.t.Cleanup(func() {
		_, _ = sessions[0].Close(), sessions[1].Close()
		serving.Wait()
	})
	return sessions[0]
}

func (f *fixture) peer(_ context.Context, relay registry.Relay) (*tunnel.Session, error) {
	if f.partitioned.Load() {
		return nil, errors.New("no route to host")
	}
	if f.silent.Load() {
		return f.silentSession(), nil
	}
	return f.session(f.relays[relay.ID].ServePeer), nil
}

// connect adds a replica of agent 7 to a relay. It responds with its name and echoes.
func (f *fixture) connect(relay string, id int64, name string) (_ *tunnel.Session, disconnect func()) {
	c := registry.Connection{AgentID: 7, ID: id, RelayID: relay}
	s := f.session(func(s *tunnel.Stream) {
		_, _ = io.WriteString(s, name+" ")
		_, _ = io.Copy(s, s)
		_ = s.CloseWrite()
	})
	return s, f.register(c, s)
}

// register adds a connection to its relay and to the registry.
func (f *fixture) register(c registry.Connection, s *tunnel.Session) (disconnect func()) {
	f.t.Helper()
	disconnect = f.relays[c.RelayID].Add(c, s)
	value, err := json.Marshal(c)
	require.NoError(f.t, err)
	require.NoError(f.t, f.registry.Put(c.Key(), value))
	return disconnect
}

// request opens a stream at a relay, and returns the response.
func (f *fixture) request(relay string, connection int64) string {
	f.t.Helper()
	r, err := f.relays[relay].Open(f.t.Context(), &connections.RetryState{}, route.Destination{
		AgentID: 7, ConnectionID: connection, Target: "shop",
	})
	require.NoError(f.t, err)
	return f.exchange(r)
}

// exchange sends hello and returns the response.
func (f *fixture) exchange(r *connections.Stream) string {
	f.t.Helper()
	_, err := io.WriteString(r, "hello")
	require.NoError(f.t, err)
	require.NoError(f.t, r.CloseWrite())
	response, err := io.ReadAll(r)
	require.NoError(f.t, err)
	return string(response)
}

func TestRequestGoesToRelayThatHoldsAgent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.connect("a", 1, "one")
	require.Equal(t, "one hello", f.request("a", 0))
	require.Equal(t, "one hello", f.request("b", 0), "through the other relay")
	f.connect("b", 2, "two")
	require.Equal(t, "two hello", f.request("b", 0), "a local connection is preferred")
	require.Equal(t, "one hello", f.request("b", 1), "unless a connection is requested")
}

// The opener of a stream learns that the agent has accepted it, also through another relay.
func TestAcceptedIsForwardedToOpener(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	streams := make(chan *tunnel.Stream, 2)
	s := f.session(func(s *tunnel.Stream) { streams <- s })
	f.register(registry.Connection{AgentID: 7, ID: 1, RelayID: "a"}, s)
	for _, relay := range []string{"a", "b"} {
		r, err := f.relays[relay].Open(t.Context(), &connections.RetryState{}, route.Destination{AgentID: 7, Target: "shop"})
		require.NoError(t, err)
		far := <-streams
		require.NoError(t, far.Accept())
		require.NoError(t, r.WaitAccepted())
		require.NoError(t, far.CloseWrite())
		require.NoError(t, r.CloseWrite())
	}
}

func TestClosedConnectionIsSkipped(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, _ := f.connect("a", 1, "one")
	f.connect("b", 2, "two")
	require.NoError(t, first.Close())
	require.Equal(t, "two hello", f.request("a", 0))
}

// The registry is outdated: the other relay resets the stream, and the request is sent elsewhere.
func TestStaleRegistryEntryIsRetried(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, disconnect := f.connect("b", 1, "one")
	disconnect()
	state := &connections.RetryState{}
	to := route.Destination{AgentID: 7, Target: "shop"}
	r, err := f.relays["a"].Open(t.Context(), state, to)
	require.NoError(t, err)
	_, err = r.Read(make([]byte, 1))
	var reset *tunnel.ResetError
	require.ErrorAs(t, err, &reset)
	require.Equal(t, tunnel.NotAccepted, reset.Reason)
	require.True(t, state.RecordFailure(r, err, route.NotAccepted, route.RetryConditions{}))
	f.connect("b", 2, "two")
	r, err = f.relays["a"].Open(t.Context(), state, to)
	require.NoError(t, err)
	require.Equal(t, "two hello", f.exchange(r))
}

func TestWaitingRequestsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		responses := make(chan string, 2)
		for range 2 {
			go func() { responses <- f.request("a", 0) }()
		}
		synctest.Wait()
		require.Equal(t, 2, f.relays["a"].Waiting())
		_, err := f.relays["a"].Open(t.Context(), &connections.RetryState{}, route.Destination{AgentID: 8, Target: "shop"})
		require.Equal(t, errcode.ResourceExhausted, fault.CodeOf(err))
		require.ErrorContains(t, err, "agent 8 is not connected, and 2 requests wait for agents at this relay")
		require.EqualValues(t, 1, f.refused.Load())
		f.connect("a", 1, "one")
		for range 2 {
			require.Equal(t, "one hello", <-responses)
		}
		require.Zero(t, f.relays["a"].Waiting())
		require.Equal(t, "one hello", f.request("a", 0))
	})
}

func TestUnreachableRelayIsSkipped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.partitioned.Store(true)
		f.connect("b", 1, "one")
		response := make(chan string)
		go func() { response <- f.request("a", 0) }()
		synctest.Wait()
		f.connect("a", 2, "two")
		require.Equal(t, "two hello", <-response)
	})
}

// An unreachable relay is retried, because no event reports its recovery.
func TestUnreachableRelayIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.partitioned.Store(true)
		f.connect("b", 1, "one")
		state := &connections.RetryState{}
		_, err := f.relays["a"].Open(t.Context(), state, route.Destination{AgentID: 7, Target: "shop"})
		require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
		require.ErrorContains(t, err, "agent 7 could not be reached within 1m0s; last error: no route to host")
		response := make(chan string)
		go func() { response <- f.request("a", 0) }()
		synctest.Wait()
		f.partitioned.Store(false)
		startedAt := time.Now()
		require.Equal(t, "one hello", <-response)
		require.Less(t, time.Since(startedAt), time.Second)
	})
}

// A request fails at its deadline, however often it was refused.
func TestRetriedRequestHasOneDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		_, disconnect := f.connect("b", 1, "one")
		disconnect()
		state, startedAt := &connections.RetryState{}, time.Now()
		for {
			r, err := f.relays["a"].Open(t.Context(), state, route.Destination{AgentID: 7, Target: "shop"})
			if err != nil {
				require.ErrorContains(t, err, "this relay has no connection 1 of agent 7")
				break
			}
			require.True(t, state.RecordFailure(r, r.WaitAccepted(), route.NotAccepted, route.RetryConditions{}))
		}
		require.Equal(t, time.Minute, time.Since(startedAt))
	})
}

func TestOverloadedAgentIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.connect("a", 1, "one")
	state, to := &connections.RetryState{}, route.Destination{AgentID: 7, Target: "shop"}
	r, err := f.relays["a"].Open(t.Context(), state, to)
	require.NoError(t, err)
	defer r.Reset(tunnel.Cancelled, "the test is over")
	tooMany := &tunnel.ResetError{Reason: tunnel.Overloaded, Text: "too many streams"}
	require.True(t, state.RecordFailure(r, tooMany, route.Overloaded, route.RetryConditions{}))
	_, err = f.relays["a"].Open(t.Context(), state, to)
	require.Equal(t, errcode.ResourceExhausted, fault.CodeOf(err))
}

func TestWaitingRequestIsServedWhenAgentConnects(t *testing.T) {
	t.Parallel()
	for _, relay := range []string{"a", "b"} {
		t.Run("to "+relay, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				response := make(chan string)
				go func() { response <- f.request("a", 0) }()
				synctest.Wait()
				require.Empty(t, response)
				startedAt := time.Now()
				f.connect(relay, 1, "one")
				require.Equal(t, "one hello", <-response)
				require.Equal(t, startedAt, time.Now(), "there is no polling")
			})
		})
	}
}

func TestOpenTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		startedAt := time.Now()
		_, err := f.relays["a"].Open(t.Context(), &connections.RetryState{}, route.Destination{AgentID: 7, Target: "shop"})
		require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
		require.ErrorContains(t, err, "agent 7 is not connected; the request waited for 1m0s")
		require.Equal(t, time.Minute, time.Since(startedAt))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = f.relays["a"].Open(ctx, &connections.RetryState{}, route.Destination{
			AgentID: 7, ConnectionID: 3, Target: "shop",
		})
		require.ErrorContains(t, err, "connection 3 of agent 7 is not connected; the request waited for 1s")
		state := &connections.RetryState{Agent: `agent "east" (7)`}
		_, err = f.relays["a"].Open(t.Context(), state, route.Destination{AgentID: 7, Target: "shop"})
		require.ErrorContains(t, err, `agent "east" (7) is not connected; the request waited for 1m0s`)
	})
}

// The caller's deadline applies, also one after the agent timeout.
func TestRequestWaitsUntilItsCallersDeadline(t *testing.T) {
	t.Parallel()
	for _, patience := range []time.Duration{time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			startedAt := time.Now()
			state := &connections.RetryState{Deadline: startedAt.Add(patience)}
			_, err := f.relays["a"].Open(t.Context(), state, route.Destination{AgentID: 7, Target: "shop"})
			require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
			require.ErrorContains(t, err, "the request waited for "+patience.String())
			require.Equal(t, patience, time.Since(startedAt))
		})
	}
}

func TestInvalidDestinationIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.session(f.relays["a"].ServePeer)
	st, err := s.Open([]byte(`{"agent_id":7}`))
	require.NoError(t, err)
	_, err = st.Read(make([]byte, 1))
	var reset *tunnel.ResetError
	require.ErrorAs(t, err, &reset)
	require.Equal(t, tunnel.Refused, reset.Reason)
}
