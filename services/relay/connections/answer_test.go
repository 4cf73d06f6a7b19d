package connections_test

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

// silentSession returns a session whose other side receives everything and responds to nothing.
func (f *fixture) silentSession() *tunnel.Session {
	near, far := net.Pipe()
	s := tunnel.NewSession(near, false, true, tunnel.Config{PingInterval: time.Hour}, nil)
	ended := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(io.Discard, far)
		ended <- struct{}{}
	}()
	go func() {
		_ = s.Serve()
		ended <- struct{}{}
	}()
	f.t.Cleanup(func() {
		_, _ = s.Close(), far.Close()
		<-ended
		<-ended
	})
	return s
}

// connectSilent adds a replica of agent 7 that was stopped.
func (f *fixture) connectSilent(relay string, id int64) {
	f.t.Helper()
	f.register(registry.Connection{AgentID: 7, ID: id, RelayID: relay}, f.silentSession())
}

// open opens a stream at a relay, and returns what waits for its answer.
func (f *fixture) open(relay string) (_ *connections.Stream, await func(wait func() error) error) {
	f.t.Helper()
	state, to := &connections.RetryState{}, route.Destination{AgentID: 7, Target: "shop"}
	s, err := f.relays[relay].Open(f.t.Context(), state, to)
	require.NoError(f.t, err)
	return s, func(wait func() error) error { return f.relays[relay].AwaitAnswer(state, s, to, wait) }
}

func TestRequestLeavesSilentReplicaAfterASecond(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]string{"local": "a", "at another relay": "b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.connectSilent("a", 1)
				s, await := f.open(from)
				f.connect("b", 2, "two")
				startedAt := time.Now()
				require.ErrorIs(t, await(s.WaitAccepted), connections.ErrSilent)
				require.Equal(t, time.Second, time.Since(startedAt))
				state := &connections.RetryState{}
				require.True(t, state.RecordFailure(s, connections.ErrSilent, route.ConnectionLost,
					route.RetryConditions{Replayable: true}))
				s, err := f.relays[from].Open(t.Context(), state, route.Destination{AgentID: 7, Target: "shop"})
				require.NoError(t, err)
				require.Equal(t, "two hello", f.exchange(s))
			})
		})
	}
}

func TestRequestLeavesSilentRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.connect("a", 1, "one")
		f.silent.Store(true)
		s, await := f.open("b")
		f.connect("b", 2, "two")
		startedAt := time.Now()
		require.ErrorIs(t, await(s.WaitAccepted), connections.ErrSilent)
		require.Equal(t, 1500*time.Millisecond, time.Since(startedAt))
	})
}

// A target may take its time, and a request without another replica has nowhere to go.
func TestRequestStaysWithReplicaThatResponds(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(f *fixture) (drain func()){
		"slow target": func(f *fixture) func() {
			f.connect("a", 1, "one")
			return func() {}
		},
		"slow target at another relay": func(f *fixture) func() {
			f.connect("b", 1, "one")
			return func() {}
		},
		"no other replica": func(f *fixture) func() {
			f.connectSilent("a", 1)
			return func() {}
		},
		"a replica that drains": func(f *fixture) func() {
			_, disconnect := f.connect("a", 1, "one")
			return disconnect
		},
		"a replica that drains at another relay": func(f *fixture) func() {
			_, disconnect := f.connect("b", 1, "one")
			return disconnect
		},
		"a relay that drains": func(f *fixture) func() {
			f.connect("b", 1, "one")
			return func() { f.partitioned.Store(true) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				drain := connect(f)
				s, await := f.open("a")
				synctest.Wait() // the stream has arrived
				drain()
				if name != "no other replica" {
					f.connect("a", 2, "two")
				}
				require.NoError(t, await(func() error {
					<-time.After(time.Minute)
					return nil
				}))
				require.NoError(t, s.Err(), "the stream was not reset")
			})
		})
	}
}

// An answer that arrives during a probe counts.
func TestAnswerEndsProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.connectSilent("a", 1)
		s, await := f.open("a")
		f.connect("a", 2, "two")
		ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
		defer cancel()
		require.NoError(t, await(func() error {
			<-ctx.Done()
			return nil
		}))
		require.NoError(t, s.Err())
	})
}
