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
	"go.uber.org/goleak"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is two relays that share a registry.
type fixture struct {
	t      *testing.T
	known  *registry.Registry
	relays map[string]*connections.Pool
	// parted is that relays do not reach each other.
	parted atomic.Bool
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, known: registry.New(), relays: map[string]*connections.Pool{}}
	for _, id := range []string{"a", "b"} {
		value, err := json.Marshal(registry.Relay{URL: "https://" + id})
		require.NoError(t, err)
		require.NoError(t, f.known.Put("relay."+id, value))
		f.relays[id] = connections.NewPool(connections.Config{Self: id, Registry: f.known, Peer: f.peer})
	}
	return f
}

// session connects two sides; accept takes the streams of the far one.
func (f *fixture) session(accept func(*tunnel.Stream)) *tunnel.Session {
	near, far := net.Pipe()
	sessions := []*tunnel.Session{tunnel.NewSession(near, false, true, tunnel.Config{}, nil), tunnel.NewSession(far, true, true, tunnel.Config{}, accept)}
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
	if f.parted.Load() {
		return nil, errors.New("no route to host")
	}
	return f.session(f.relays[relay.ID].ServePeer), nil
}

// connect has a replica of agent 7 at a relay, which answers with its name and whatever it is sent.
func (f *fixture) connect(relay string, id int64, name string) (*tunnel.Session, func()) {
	c := registry.Connection{AgentID: 7, ID: id, RelayID: relay}
	s := f.session(func(s *tunnel.Stream) {
		_, _ = io.WriteString(s, name+" ")
		_, _ = io.Copy(s, s)
		_ = s.CloseWrite()
	})
	leave := f.relays[relay].Add(c, s)
	value, err := json.Marshal(c)
	require.NoError(f.t, err)
	require.NoError(f.t, f.known.Put(c.Key(), value))
	return s, leave
}

func (f *fixture) ask(relay string, connection int64) string {
	f.t.Helper()
	r, err := f.relays[relay].Open(f.t.Context(), &connections.Attempt{}, route.Destination{AgentID: 7, ConnectionID: connection, Target: "shop"})
	require.NoError(f.t, err)
	return f.said(r)
}

func (f *fixture) said(r *connections.Stream) string {
	f.t.Helper()
	_, err := io.WriteString(r, "hello")
	require.NoError(f.t, err)
	require.NoError(f.t, r.CloseWrite())
	said, err := io.ReadAll(r)
	require.NoError(f.t, err)
	return string(said)
}

func TestARequestGoesToWhoeverHoldsTheAgent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.connect("a", 1, "one")
	require.Equal(t, "one hello", f.ask("a", 0))
	require.Equal(t, "one hello", f.ask("b", 0), "through the other relay")
	f.connect("b", 2, "two")
	require.Equal(t, "two hello", f.ask("b", 0), "its own comes first")
	require.Equal(t, "one hello", f.ask("b", 1), "but where one is wanted")
}

// What an agent says of a stream reaches who opened it, through the other relay, too.
func TestWhoAsksIsToldThatTheTargetIsReached(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	taken := make(chan *tunnel.Stream, 2)
	s := f.session(func(s *tunnel.Stream) { taken <- s })
	c := registry.Connection{AgentID: 7, ID: 1, RelayID: "a"}
	f.relays["a"].Add(c, s)
	value, err := json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, f.known.Put(c.Key(), value))
	for _, relay := range []string{"a", "b"} {
		r, err := f.relays[relay].Open(t.Context(), &connections.Attempt{}, route.Destination{AgentID: 7, Target: "shop"})
		require.NoError(t, err)
		far := <-taken
		require.NoError(t, far.Accept())
		require.NoError(t, r.WaitAccepted())
		require.NoError(t, far.CloseWrite())
		require.NoError(t, r.CloseWrite())
	}
}

func TestAConnectionThatIsGoneIsNotTheEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	first, _ := f.connect("a", 1, "one")
	f.connect("b", 2, "two")
	require.NoError(t, first.Close())
	require.Equal(t, "two hello", f.ask("a", 0))
}

// The registry says still what is no longer so: the relay that was asked says so, and nothing was taken.
func TestWhatTheOtherRelayNoLongerHasIsTriedElsewhere(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, leave := f.connect("b", 1, "one")
	leave()
	attempt := &connections.Attempt{}
	to := route.Destination{AgentID: 7, Target: "shop"}
	r, err := f.relays["a"].Open(t.Context(), attempt, to)
	require.NoError(t, err)
	_, err = r.Read(make([]byte, 1))
	var reset *tunnel.ResetError
	require.ErrorAs(t, err, &reset)
	require.True(t, reset.Retryable(), "%v", err)
	attempt.Failed(r, err)
	f.connect("b", 2, "two")
	r, err = f.relays["a"].Open(t.Context(), attempt, to)
	require.NoError(t, err)
	require.Equal(t, "two hello", f.said(r))
}

func TestARelayThatCannotBeReachedIsNotTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.parted.Store(true)
		f.connect("b", 1, "one")
		answered := make(chan string)
		go func() { answered <- f.ask("a", 0) }()
		synctest.Wait()
		f.connect("a", 2, "two")
		require.Equal(t, "two hello", <-answered)
	})
}

// A way between two relays that was broken is tried again: nobody says when it is whole.
func TestARelayThatCanBeReachedAgainIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.parted.Store(true)
		f.connect("b", 1, "one")
		attempt := &connections.Attempt{}
		_, err := f.relays["a"].Open(t.Context(), attempt, route.Destination{AgentID: 7, Target: "shop"})
		require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
		require.ErrorContains(t, err, "agent 7 could not be reached; the request waited for 1m0s, and was tried in vain: no route to host")
		answered := make(chan string)
		go func() { answered <- f.ask("a", 0) }()
		synctest.Wait()
		f.parted.Store(false)
		began := time.Now()
		require.Equal(t, "one hello", <-answered)
		require.Less(t, time.Since(began), time.Second)
	})
}

// However often a request is turned away, its time is over at some point.
func TestAnAttemptHasOneDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		_, leave := f.connect("b", 1, "one")
		leave()
		attempt, began := &connections.Attempt{}, time.Now()
		for {
			r, err := f.relays["a"].Open(t.Context(), attempt, route.Destination{AgentID: 7, Target: "shop"})
			if err != nil {
				require.ErrorContains(t, err, "is not at this relay")
				break
			}
			attempt.Failed(r, r.WaitAccepted())
		}
		require.Equal(t, time.Minute, time.Since(began))
	})
}

func TestAnAgentThatIsFullIsToldAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.connect("a", 1, "one")
	attempt, to := &connections.Attempt{}, route.Destination{AgentID: 7, Target: "shop"}
	r, err := f.relays["a"].Open(t.Context(), attempt, to)
	require.NoError(t, err)
	defer r.Reset(tunnel.Cancelled, "it is over")
	attempt.Failed(r, &tunnel.ResetError{Reason: tunnel.Overloaded, Text: "too many streams"})
	_, err = f.relays["a"].Open(t.Context(), attempt, to)
	require.Equal(t, errcode.ResourceExhausted, fault.CodeOf(err))
}

func TestWhoWaitsIsServedAsSoonAsAnAgentComes(t *testing.T) {
	t.Parallel()
	for _, relay := range []string{"a", "b"} {
		t.Run("to "+relay, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				answered := make(chan string)
				go func() { answered <- f.ask("a", 0) }()
				synctest.Wait()
				require.Empty(t, answered)
				began := time.Now()
				f.connect(relay, 1, "one")
				require.Equal(t, "one hello", <-answered)
				require.Equal(t, began, time.Now(), "nothing looks again after a while")
			})
		})
	}
}

func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		began := time.Now()
		_, err := f.relays["a"].Open(t.Context(), &connections.Attempt{}, route.Destination{AgentID: 7, Target: "shop"})
		require.Equal(t, errcode.Unavailable, fault.CodeOf(err))
		require.ErrorContains(t, err, "agent 7 is not connected; the request waited for 1m0s")
		require.Equal(t, time.Minute, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = f.relays["a"].Open(ctx, &connections.Attempt{}, route.Destination{AgentID: 7, ConnectionID: 3, Target: "shop"})
		require.ErrorContains(t, err, "connection 3 of agent 7 is not connected; the request waited for 1s")
	})
}

func TestAnInstructionThatIsNoneIsRefused(t *testing.T) {
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
