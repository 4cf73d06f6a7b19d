package link_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent/link"
	"lockstep.internal/services/relay/tunnel"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fixture is a Connector and a fake relay, for use in synctest.
type fixture struct {
	t         *testing.T
	connector *link.Connector
	startedAt time.Time

	mu         sync.Mutex
	dialErrors []error // of the next dials
	observed   state
	serving    sync.WaitGroup

	stop, endDrain context.CancelFunc
	done           chan struct{}
}

// state is what the fake relay and the callbacks observed.
type state struct {
	dials    []time.Duration   // since the start
	sessions []*tunnel.Session // the relay's sides
	// runningTasks counts the calls of OnSession that have not returned.
	runningTasks int
	outcomes     []link.Outcome
}

func (f *fixture) state() state {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.observed
}

// newFixture makes a connector with a fixed random number.
func newFixture(t *testing.T, random float64, dialErrors ...error) *fixture {
	t.Helper()
	f := &fixture{t: t, startedAt: time.Now(), dialErrors: dialErrors, done: make(chan struct{})}
	f.connector = link.NewConnector(link.Config{
		Relay: "ws://relay", Dial: f.dial,
		Accept: func(_ *tunnel.Session, s *tunnel.Stream) { _, _, _ = tunnel.Join(s, echo(s)) }, OnSession: f.runTask,
		Backoff: link.Backoff{Base: time.Second, Max: 20 * time.Second}, MaxAge: 2 * time.Hour, DrainTimeout: 12 * time.Hour,
		Logger: slog.New(slog.DiscardHandler),
		Random: func() float64 { return random },
		OnOutcome: func(o link.Outcome) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.observed.outcomes = append(f.observed.outcomes, o)
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	drainCtx, endDrain := context.WithCancel(context.WithoutCancel(ctx))
	f.stop, f.endDrain = stop, endDrain
	go func() {
		defer close(f.done)
		f.connector.Run(ctx, drainCtx)
	}()
	synctest.Wait()
	return f
}

// echo returns a target that echoes.
func echo(s *tunnel.Stream) tunnel.Conn {
	near, far := net.Pipe()
	go func() {
		_, _ = io.Copy(far, far)
		_ = far.Close()
	}()
	s.OnFailure(func() { _ = far.Close() })
	return pipe{near}
}

type pipe struct{ net.Conn }

func (p pipe) CloseWrite() error { return p.Close() }

func (f *fixture) dial(context.Context) (tunnel.Connection, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.observed.dials = append(f.observed.dials, time.Since(f.startedAt))
	if len(f.dialErrors) > 0 {
		err := f.dialErrors[0]
		f.dialErrors = f.dialErrors[1:]
		if err != nil {
			return tunnel.Connection{}, err
		}
	}
	near, far := net.Pipe()
	s := tunnel.NewSession(far, false, true, tunnel.Config{}, func(s *tunnel.Stream) {
		s.Reset(tunnel.Refused, "not expected")
	})
	f.observed.sessions = append(f.observed.sessions, s)
	f.serving.Go(func() { _ = s.Serve() })
	return tunnel.Connection{Conn: near, Encrypted: true}, nil
}

func (f *fixture) runTask(ctx context.Context, _ *tunnel.Session) {
	f.mu.Lock()
	f.observed.runningTasks++
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	f.observed.runningTasks--
	f.mu.Unlock()
}

// advance lets time pass, and waits until all goroutines block.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// stopAndWait stops the connector and waits for all goroutines.
func (f *fixture) stopAndWait() {
	f.t.Helper()
	f.stop()
	f.endDrain()
	<-f.done
	f.serving.Wait()
	synctest.Wait()
	require.Zero(f.t, f.state().runningTasks)
	require.Zero(f.t, f.connector.Status().Open)
}

// lastSession returns the relay's side of the last session.
func (f *fixture) lastSession() *tunnel.Session {
	sessions := f.state().sessions
	return sessions[len(sessions)-1]
}

// openStream opens a stream and exchanges data.
func (f *fixture) openStream(s *tunnel.Session) *tunnel.Stream {
	f.t.Helper()
	st, err := s.Open([]byte("head"))
	require.NoError(f.t, err)
	f.exchange(st)
	return st
}

func (f *fixture) exchange(st *tunnel.Stream) {
	f.t.Helper()
	_, err := st.Write([]byte("hello"))
	require.NoError(f.t, err)
	_, err = io.ReadFull(st, make([]byte, 5))
	require.NoError(f.t, err)
}

func TestConnectRetriesUntilSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		refused := &tunnel.HandshakeError{Status: http.StatusServiceUnavailable, RetryAfter: 7 * time.Second}
		f := newFixture(t, 1, down, down, refused, down)
		require.ErrorIs(t, f.connector.Status().Err, down)
		advance(time.Minute)
		wantDials := []time.Duration{
			0, time.Second, 2600 * time.Millisecond, 2600*time.Millisecond + 7*time.Second + 2560*time.Millisecond,
			12160*time.Millisecond + 4096*time.Millisecond,
		}
		require.Equal(t, wantDials, f.state().dials)
		require.Equal(t, link.Status{Open: 1}, f.connector.Status())
		require.Equal(t, 1, f.state().runningTasks)
		f.stopAndWait()
		require.Equal(t, []link.Outcome{link.Failed, link.Failed, link.Refused, link.Failed, link.Connected, link.Ended},
			f.state().outcomes)
	})
}

// All agents of a relay that ends lose their connections at the same time.
func TestFirstReconnectHasJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 0.5)
		advance(time.Minute)
		require.NoError(t, f.lastSession().Close())
		synctest.Wait()
		require.Zero(t, f.connector.Status().Open)
		require.ErrorIs(t, f.connector.Status().Err, tunnel.ErrClosed)
		advance(time.Second)
		require.Equal(t, []time.Duration{0, time.Minute + 500*time.Millisecond}, f.state().dials)
		require.Equal(t, link.Status{Open: 1}, f.connector.Status())
		f.stopAndWait()
	})
}

func TestShortConnectionsIncreaseBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1)
		for range 3 {
			require.NoError(t, f.lastSession().Close())
			synctest.Wait()
			advance(20 * time.Second)
		}
		// Each of these connections lasted 19 s or less.
		require.Equal(t, []time.Duration{0, time.Second, 21600 * time.Millisecond, 42560 * time.Millisecond}, f.state().dials)
		advance(time.Minute)
		require.NoError(t, f.lastSession().Close())
		synctest.Wait()
		advance(time.Second)
		require.Len(t, f.state().dials, 5, "a long connection resets the backoff")
		f.stopAndWait()
	})
}

func TestOldConnectionIsReplacedBeforeDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, nil, errors.New("busy"))
		old := f.lastSession()
		st := f.openStream(old)
		advance(2*time.Hour + 12*time.Minute)
		require.Len(t, f.state().dials, 2)
		f.openStream(old).Reset(tunnel.Cancelled, "no longer needed") // the new connection is not open yet
		advance(time.Second)
		require.Len(t, f.state().sessions, 2)
		require.Equal(t, link.Status{Open: 2}, f.connector.Status())
		require.Equal(t, 2, f.state().runningTasks)
		f.openStream(old).Reset(tunnel.Cancelled, "no longer needed") // relays may not know of the new one yet
		advance(time.Second)
		require.Equal(t, 1, f.state().runningTasks)
		<-old.PeerDraining()
		_, err := old.Open([]byte("head"))
		require.ErrorIs(t, err, tunnel.ErrDraining)
		f.exchange(st) // open streams continue
		f.openStream(f.lastSession()).Reset(tunnel.Cancelled, "no longer needed")
		require.NoError(t, st.CloseWrite())
		<-old.Done()
		synctest.Wait()
		require.Equal(t, link.Status{Open: 1}, f.connector.Status())
		f.stopAndWait()
	})
}

func TestDrainingRelayIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 0.5)
		old := f.lastSession()
		st := f.openStream(old)
		advance(time.Hour)
		old.Drain()
		synctest.Wait()
		require.Zero(t, f.state().runningTasks, "OnSession has returned")
		advance(time.Second)
		require.Equal(t, []time.Duration{0, time.Hour + 500*time.Millisecond}, f.state().dials)
		f.exchange(st)
		st.Reset(tunnel.Cancelled, "no longer needed")
		<-old.Done()
		f.stopAndWait()
	})
}

func TestDrainTimeoutClosesOldConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 0)
		st := f.openStream(f.lastSession())
		advance(108 * time.Minute)
		require.Equal(t, link.Status{Open: 2}, f.connector.Status())
		advance(12 * time.Hour)
		f.exchange(st)
		advance(time.Second)
		_, err := st.Read(make([]byte, 1))
		require.ErrorIs(t, err, tunnel.ErrClosed)
		f.stopAndWait()
	})
}

func TestStopWaitsForOpenStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 0)
		st := f.openStream(f.lastSession())
		f.stop()
		synctest.Wait()
		<-f.lastSession().PeerDraining()
		f.exchange(st)
		require.NoError(t, st.CloseWrite())
		<-f.done
		f.stopAndWait()
		require.Len(t, f.state().dials, 1)
	})
}

func TestEndOfDrainClosesOpenStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 0)
		st := f.openStream(f.lastSession())
		f.stop()
		advance(time.Hour)
		f.exchange(st)
		f.endDrain()
		<-f.done
		f.serving.Wait()
		require.ErrorIs(t, st.Err(), tunnel.ErrClosed)
	})
}

func TestStopEndsRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, errors.New("down"))
		f.stop()
		<-f.done
		require.Len(t, f.state().dials, 1)
		f.endDrain()
	})
}
