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
	"go.uber.org/goleak"

	"lockstep.internal/services/relay/agent/link"
	"lockstep.internal/services/relay/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is a keeper and the relay that it connects with. It lives in a bubble of synctest.
type bed struct {
	t      *testing.T
	keeper *link.Connector
	began  time.Time

	mu       sync.Mutex
	refusals []error // of the next attempts
	seen     seen
	serving  sync.WaitGroup

	stop, cut context.CancelFunc
	done      chan struct{}
}

// seen is what has happened.
type seen struct {
	dials []time.Duration // when there were attempts, since the beginning
	// sessions as the relay has them.
	sessions []*tunnel.Session
	// attending is how many sessions are attended.
	attending int
	outcomes  []link.Outcome
}

func (b *bed) now() seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen
}

// setup has a keeper whose random numbers are all this one.
func setup(t *testing.T, random float64, refusals ...error) *bed {
	t.Helper()
	b := &bed{t: t, began: time.Now(), refusals: refusals, done: make(chan struct{})}
	b.keeper = link.NewConnector(link.Config{
		Relay: "ws://relay", Dial: b.dial, Accept: func(_ *tunnel.Session, s *tunnel.Stream) { _, _, _ = tunnel.Join(s, echo(s)) }, OnSession: b.attend,
		Backoff: link.Backoff{Min: time.Second, Max: 20 * time.Second}, MaxAge: 2 * time.Hour, DrainTimeout: 12 * time.Hour, Logger: slog.New(slog.DiscardHandler),
		Random: func() float64 { return random },
		OnOutcome: func(o link.Outcome) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.seen.outcomes = append(b.seen.outcomes, o)
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	finish, cut := context.WithCancel(context.WithoutCancel(ctx))
	b.stop, b.cut = stop, cut
	go func() {
		defer close(b.done)
		b.keeper.Run(ctx, finish)
	}()
	synctest.Wait()
	return b
}

// echo is a target that sends back what it is sent.
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

func (b *bed) dial(context.Context) (link.Connection, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen.dials = append(b.seen.dials, time.Since(b.began))
	if len(b.refusals) > 0 {
		err := b.refusals[0]
		b.refusals = b.refusals[1:]
		if err != nil {
			return link.Connection{}, err
		}
	}
	near, far := net.Pipe()
	s := tunnel.NewSession(far, false, true, tunnel.Config{}, func(s *tunnel.Stream) { s.Reset(tunnel.Refused, "not expected") })
	b.seen.sessions = append(b.seen.sessions, s)
	b.serving.Go(func() { _ = s.Serve() })
	return link.Connection{Conn: near, Encrypted: true, RelayID: "r", ID: "1"}, nil
}

func (b *bed) attend(ctx context.Context, _ *tunnel.Session) {
	b.mu.Lock()
	b.seen.attending++
	b.mu.Unlock()
	<-ctx.Done()
	b.mu.Lock()
	b.seen.attending--
	b.mu.Unlock()
}

// pass lets time pass, and what happens then happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// end stops the keeper and waits for everything.
func (b *bed) end() {
	b.t.Helper()
	b.stop()
	b.cut()
	<-b.done
	b.serving.Wait()
	synctest.Wait()
	require.Zero(b.t, b.now().attending)
	require.Zero(b.t, b.keeper.Status().Open)
}

// session is the last one.
func (b *bed) session() *tunnel.Session {
	sessions := b.now().sessions
	return sessions[len(sessions)-1]
}

// open is a stream that has carried something.
func (b *bed) open(s *tunnel.Session) *tunnel.Stream {
	b.t.Helper()
	st, err := s.Open([]byte("head"))
	require.NoError(b.t, err)
	b.talk(st)
	return st
}

func (b *bed) talk(st *tunnel.Stream) {
	b.t.Helper()
	_, err := st.Write([]byte("hello"))
	require.NoError(b.t, err)
	_, err = io.ReadFull(st, make([]byte, 5))
	require.NoError(b.t, err)
}

func TestAttemptsGoOnUntilOneSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("connection refused")
		b := setup(t, 1, down, down, &tunnel.RefusedError{Status: http.StatusServiceUnavailable, RetryAfter: 7 * time.Second}, down)
		require.ErrorIs(t, b.keeper.Status().Err, down)
		pass(time.Minute)
		require.Equal(t, []time.Duration{0, time.Second, 2600 * time.Millisecond, 2600*time.Millisecond + 7*time.Second + 2560*time.Millisecond, 12160*time.Millisecond + 4096*time.Millisecond}, b.now().dials)
		require.Equal(t, link.Status{Open: 1}, b.keeper.Status())
		require.Equal(t, 1, b.now().attending)
		b.end()
		require.Equal(t, []link.Outcome{link.Failed, link.Failed, link.Refused, link.Failed, link.Connected, link.Ended}, b.now().outcomes)
	})
}

// All agents of a relay that ends lose their connections at the same time.
func TestTheFirstAttemptAfterALossIsSpreadToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 0.5)
		pass(time.Minute)
		require.NoError(t, b.session().Close())
		synctest.Wait()
		require.Zero(t, b.keeper.Status().Open)
		require.ErrorIs(t, b.keeper.Status().Err, tunnel.ErrClosed)
		pass(time.Second)
		require.Equal(t, []time.Duration{0, time.Minute + 500*time.Millisecond}, b.now().dials)
		require.Equal(t, link.Status{Open: 1}, b.keeper.Status())
		b.end()
	})
}

func TestConnectionsThatDoNotLastAreMadeAtGrowingPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1)
		for range 3 {
			require.NoError(t, b.session().Close())
			synctest.Wait()
			pass(20 * time.Second)
		}
		// Those that were made lasted for 19 s and less.
		require.Equal(t, []time.Duration{0, time.Second, 21600 * time.Millisecond, 42560 * time.Millisecond}, b.now().dials)
		pass(time.Minute)
		require.NoError(t, b.session().Close())
		synctest.Wait()
		pass(time.Second)
		require.Len(t, b.now().dials, 5, "one that has lasted lets it begin anew")
		b.end()
	})
}

func TestAnOldConnectionIsReplacedBeforeItGoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1, nil, errors.New("busy"))
		old := b.session()
		st := b.open(old)
		pass(2*time.Hour + 12*time.Minute)
		require.Len(t, b.now().dials, 2)
		b.open(old).Reset(tunnel.Cancelled, "enough") // no other has been made yet
		pass(time.Second)
		require.Len(t, b.now().sessions, 2)
		require.Equal(t, link.Status{Open: 2}, b.keeper.Status())
		require.Equal(t, 2, b.now().attending)
		b.open(old).Reset(tunnel.Cancelled, "enough") // relays may not know of the new one yet
		pass(time.Second)
		require.Equal(t, 1, b.now().attending)
		<-old.PeerDraining()
		_, err := old.Open([]byte("head"))
		require.ErrorIs(t, err, tunnel.ErrDraining)
		b.talk(st) // what is open goes on
		b.open(b.session()).Reset(tunnel.Cancelled, "enough")
		require.NoError(t, st.CloseWrite())
		<-old.Done()
		synctest.Wait()
		require.Equal(t, link.Status{Open: 1}, b.keeper.Status())
		b.end()
	})
}

func TestARelayThatLeavesIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 0.5)
		old := b.session()
		st := b.open(old)
		pass(time.Hour)
		old.Drain()
		synctest.Wait()
		require.Zero(t, b.now().attending, "what attends does not keep it open")
		pass(time.Second)
		require.Equal(t, []time.Duration{0, time.Hour + 500*time.Millisecond}, b.now().dials)
		b.talk(st)
		st.Reset(tunnel.Cancelled, "enough")
		<-old.Done()
		b.end()
	})
}

func TestWhatLingersIsCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 0)
		st := b.open(b.session())
		pass(108 * time.Minute)
		require.Equal(t, link.Status{Open: 2}, b.keeper.Status())
		pass(12 * time.Hour)
		b.talk(st)
		pass(time.Second)
		_, err := st.Read(make([]byte, 1))
		require.ErrorIs(t, err, tunnel.ErrClosed)
		b.end()
	})
}

func TestStoppingFinishesWhatIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 0)
		st := b.open(b.session())
		b.stop()
		synctest.Wait()
		<-b.session().PeerDraining()
		b.talk(st)
		require.NoError(t, st.CloseWrite())
		<-b.done
		b.end()
		require.Len(t, b.now().dials, 1)
	})
}

func TestStoppingCutsWhatDoesNotFinish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 0)
		st := b.open(b.session())
		b.stop()
		pass(time.Hour)
		b.talk(st)
		b.cut()
		<-b.done
		b.serving.Wait()
		require.ErrorIs(t, st.Err(), tunnel.ErrClosed)
	})
}

func TestStoppingEndsAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1, errors.New("down"))
		b.stop()
		<-b.done
		require.Len(t, b.now().dials, 1)
		b.cut()
	})
}
