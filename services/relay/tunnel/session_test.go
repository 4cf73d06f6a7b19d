package tunnel_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/nettest"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/services/relay/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ends are both sides of a session over TCP.
type ends struct {
	dialled, accepted *tunnel.Session
	// streams are those that the dialling side opened, as the other side has them.
	streams chan *tunnel.Stream
	conns   [2]net.Conn
}

func connect(t testing.TB, cfg tunnel.Config) *ends {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	e := &ends{streams: make(chan *tunnel.Stream, 1000), conns: [2]net.Conn{dialled, accepted}}
	e.dialled = tunnel.NewSession(dialled, true, false, cfg, func(s *tunnel.Stream) { s.Reset(tunnel.Refused, "not expected") })
	e.accepted = tunnel.NewSession(accepted, false, false, cfg, func(s *tunnel.Stream) { e.streams <- s })
	var serving sync.WaitGroup
	for _, s := range []*tunnel.Session{e.dialled, e.accepted} {
		serving.Go(func() { _ = s.Serve() })
	}
	t.Cleanup(func() {
		_ = e.dialled.Close()
		_ = e.accepted.Close()
		serving.Wait()
	})
	return e
}

func (e *ends) stream(t testing.TB) (near, far *tunnel.Stream) {
	t.Helper()
	near, err := e.dialled.Open([]byte("head"))
	require.NoError(t, err)
	far = <-e.streams
	require.Equal(t, "head", string(far.Head()))
	return near, far
}

func TestAStreamIsAConnection(t *testing.T) {
	t.Parallel()
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		e := connect(t, tunnel.Config{})
		near, far := e.stream(t)
		return near, far, func() {
			_ = e.dialled.Close()
			_ = e.accepted.Close()
		}, nil
	})
}

func TestDirectionsEndSeparately(t *testing.T) {
	t.Parallel()
	near, far := connect(t, tunnel.Config{}).stream(t)
	_, err := near.Write([]byte("question"))
	require.NoError(t, err)
	require.NoError(t, near.CloseWrite())
	asked, err := io.ReadAll(far)
	require.NoError(t, err)
	require.Equal(t, "question", string(asked))
	_, err = near.Write([]byte("more"))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = far.Write([]byte("answer"))
	require.NoError(t, err)
	require.NoError(t, far.Close())
	answered, err := io.ReadAll(near)
	require.NoError(t, err)
	require.Equal(t, "answer", string(answered))
}

func TestEveryByteArrivesInOrder(t *testing.T) {
	t.Parallel()
	e := connect(t, tunnel.Config{Window: 10_000})
	var group errgroup.Group
	for i := range 20 {
		group.Go(func() error {
			sent := make([]byte, 1+rand.IntN(1<<20))
			for j := range sent {
				sent[j] = byte(j * (i + 1) >> 3)
			}
			s, err := e.dialled.Open([]byte(fmt.Sprint(i)))
			if err != nil {
				return err
			}
			var back bytes.Buffer
			var both errgroup.Group
			both.Go(func() error {
				for rest := sent; len(rest) > 0; {
					n := min(len(rest), 1+rand.IntN(100_000))
					if _, err := s.Write(rest[:n]); err != nil {
						return err
					}
					rest = rest[n:]
				}
				return s.CloseWrite()
			})
			both.Go(func() error {
				_, err := io.Copy(&back, s)
				return err
			})
			if err := both.Wait(); err != nil {
				return err
			}
			if !bytes.Equal(sent, back.Bytes()) {
				return errors.New("what came back is not what was sent")
			}
			return nil
		})
		group.Go(func() error {
			s := <-e.streams
			_, err := io.Copy(s, s)
			return errors.Join(err, s.CloseWrite())
		})
	}
	require.NoError(t, group.Wait())
}

// A reader that has stopped holds up its own writer, and nobody else.
func TestAStreamThatNobodyReadsStopsItsWriterAlone(t *testing.T) {
	t.Parallel()
	const window = 64 << 10
	e := connect(t, tunnel.Config{Window: window})
	stuck, unread := e.stream(t)
	n, err := stuck.Write(make([]byte, window))
	require.NoError(t, err)
	require.Equal(t, window, n, "as much as the window, which is all that is kept")
	require.NoError(t, stuck.SetWriteDeadline(time.Now().Add(time.Second)))
	n, err = stuck.Write(make([]byte, 10*window))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Zero(t, n)
	for range 3 {
		near, far := e.stream(t)
		go func() {
			_, _ = io.Copy(far, far)
			_ = far.CloseWrite()
		}()
		sent := make([]byte, 20*window)
		go func() {
			_, _ = near.Write(sent)
			_ = near.CloseWrite()
		}()
		back, err := io.ReadAll(near)
		require.NoError(t, err)
		require.Len(t, back, len(sent))
	}
	// Once it is read, it goes on.
	require.NoError(t, stuck.SetWriteDeadline(time.Time{}))
	go func() {
		_, _ = stuck.Write(make([]byte, 10*window))
		_ = stuck.CloseWrite()
	}()
	all, err := io.ReadAll(unread)
	require.NoError(t, err)
	require.Len(t, all, 11*window)
}

func TestAStreamThatIsGivenUpEndsOnBothSides(t *testing.T) {
	t.Parallel()
	near, far := connect(t, tunnel.Config{}).stream(t)
	near.Reset(tunnel.Cancelled, "the caller is gone")
	_, err := far.Read(make([]byte, 1))
	var reset *tunnel.ResetError
	require.ErrorAs(t, err, &reset)
	require.Equal(t, tunnel.ResetError{Reason: tunnel.Cancelled, Text: "the caller is gone"}, *reset)
	_, err = far.Write([]byte("x"))
	require.ErrorAs(t, err, &reset)
	_, err = near.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestWhoWritesToNobodyIsTold(t *testing.T) {
	t.Parallel()
	near, far := connect(t, tunnel.Config{Window: 1000}).stream(t)
	require.NoError(t, far.Close())
	_, err := io.Copy(near, zeros{})
	var reset *tunnel.ResetError
	require.ErrorAs(t, err, &reset)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestStreamsAreLimited(t *testing.T) {
	t.Parallel()
	e := connect(t, tunnel.Config{MaxStreams: 3})
	var open []*tunnel.Stream
	for range 3 {
		near, _ := e.stream(t)
		open = append(open, near)
	}
	surplus, err := e.dialled.Open(nil)
	require.NoError(t, err)
	_, err = surplus.Read(make([]byte, 1))
	require.ErrorContains(t, err, "too many streams")
	open[0].Reset(tunnel.Cancelled, "done")
	next, err := e.dialled.Open([]byte("head"))
	require.NoError(t, err)
	_, err = next.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(<-e.streams, make([]byte, 1))
	require.NoError(t, err)
}

func TestStreamsEndWithTheirConnection(t *testing.T) {
	t.Parallel()
	e := connect(t, tunnel.Config{})
	near, far := e.stream(t)
	require.NoError(t, e.conns[1].Close())
	for _, s := range []*tunnel.Stream{near, far} {
		_, err := s.Read(make([]byte, 1))
		require.ErrorIs(t, err, tunnel.ErrClosed)
	}
	<-e.dialled.Done()
	_, err := e.dialled.Open(nil)
	require.ErrorIs(t, err, tunnel.ErrClosed)
}

// The other side is there and says nothing, as behind a firewall that has forgotten the connection.
func TestAConnectionWithoutASignOfLifeIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		s := tunnel.NewSession(near, true, false, tunnel.Config{}, nil)
		began := time.Now()
		require.ErrorContains(t, s.Serve(), "nothing was received for 40s")
		require.Equal(t, 40*time.Second, time.Since(began))
	})
}

func TestAQuietConnectionLives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		one, other := tunnel.NewSession(near, true, false, tunnel.Config{}, nil), tunnel.NewSession(far, false, false, tunnel.Config{}, func(s *tunnel.Stream) { _ = s.Close() })
		go func() { _ = one.Serve() }()
		go func() { _ = other.Serve() }()
		time.Sleep(time.Hour) // of the bubble's clock
		_, err := one.Open(nil)
		require.NoError(t, err)
		require.NoError(t, one.Close())
		<-other.Done()
	})
}

// FuzzSession lets the other side send anything at all.
func FuzzSession(f *testing.F) {
	frame := func(kind byte, stream byte, payload string) []byte {
		b := append([]byte{kind, 0, 0, byte(len(payload)), 0, 0, 0, stream}, payload...)
		return append([]byte{0x82, byte(len(b))}, b...)
	}
	frames := func(all ...[]byte) []byte { return bytes.Join(all, nil) }
	settings, drain, drained := frame(9, 0, "\x00\x02\x00\x00"), frame(6, 0, ""), frame(7, 0, "")
	f.Add(frames(frame(1, 2, "head"), frame(2, 2, "data"), frame(3, 2, ""), frame(5, 2, "\x00\x00\x01\x00"), frame(4, 2, "why"), drain), false)
	f.Add([]byte{0x89, 3, 'a', 'b', 'c', 0x88, 0}, false)
	f.Add([]byte{0x82, 126, 0, 200}, false)
	f.Add([]byte{0x82, 127, 0, 0, 0, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 2}, false)
	f.Add(frames(settings, frame(8, 1, ""), frame(2, 1, "data"), frame(3, 1, "")), false)
	f.Add(frames(settings, settings), false)
	f.Add(frames(frame(9, 0, "\x00\x00\x00\x01")), false)
	f.Add(frames(drain, frame(1, 2, "head"), drain, frame(4, 1, "\x01why")), false)
	f.Add(frames(settings, frame(8, 1, ""), frame(8, 1, ""), frame(8, 2, ""), drained, frame(3, 1, "")), true)
	f.Add(frames(drained, drain, drained, frame(1, 2, "head"), frame(4, 1, "\x01why")), true)
	f.Fuzz(func(t *testing.T, sent []byte, leaves bool) {
		near, far := net.Pipe()
		var others sync.WaitGroup
		others.Go(func() { _, _ = io.Copy(io.Discard, far) })
		s := tunnel.NewSession(near, true, true, tunnel.Config{MaxStreams: 4, Window: 1000}, func(s *tunnel.Stream) {
			_, _ = io.Copy(s, s)
			_ = s.Close()
		})
		own, err := s.Open([]byte("head"))
		require.NoError(t, err)
		others.Go(func() {
			_ = own.WaitAccepted()
			_, _ = io.Copy(own, own)
			_ = own.Close()
		})
		if leaves {
			s.Drain()
		}
		others.Go(func() {
			_, _ = far.Write(sent)
			_ = far.Close()
		})
		require.Error(t, s.Serve())
		others.Wait()
	})
}

func TestADrainedSessionEndsWithItsLastStream(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(near, far *tunnel.Stream){
		"ended":    func(near, far *tunnel.Stream) { _, _ = near.CloseWrite(), far.CloseWrite() },
		"given up": func(_, far *tunnel.Stream) { far.Reset(tunnel.Cancelled, "enough") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := connect(t, tunnel.Config{})
			near, far := e.stream(t)
			e.accepted.Drain()
			<-e.dialled.PeerDraining()
			_, err := e.dialled.Open([]byte("head"))
			require.ErrorIs(t, err, tunnel.ErrDraining)
			_, err = e.accepted.Open([]byte("head"))
			require.ErrorIs(t, err, tunnel.ErrDraining)
			_, err = far.Write([]byte("still here"))
			require.NoError(t, err)
			got := make([]byte, 10)
			_, err = io.ReadFull(near, got)
			require.NoError(t, err)
			end(near, far)
			<-e.accepted.Done()
			<-e.dialled.Done()
		})
	}
	t.Run("without streams", func(t *testing.T) {
		t.Parallel()
		e := connect(t, tunnel.Config{})
		e.dialled.Drain()
		<-e.dialled.Done()
		<-e.accepted.Done()
	})
}

// Who opens streams while the other side drains loses none: each is taken, or is for elsewhere.
func TestNoStreamIsLostInADrain(t *testing.T) {
	t.Parallel()
	for range 50 {
		e := connect(t, tunnel.Config{})
		go func() {
			for st := range e.streams {
				go func() {
					_, _ = io.Copy(st, st)
					_ = st.Close()
				}()
			}
		}()
		go e.accepted.Drain()
		for {
			st, err := e.dialled.Open([]byte("head"))
			if errors.Is(err, tunnel.ErrDraining) || errors.Is(err, tunnel.ErrClosed) {
				break
			}
			require.NoError(t, err)
			_, err = io.WriteString(st, "hello")
			if err == nil {
				_ = st.CloseWrite()
				var back []byte
				if back, err = io.ReadAll(st); err == nil {
					require.Equal(t, "hello", string(back))
					continue
				}
			}
			var reset *tunnel.ResetError
			require.ErrorAs(t, err, &reset)
			require.True(t, reset.Retryable())
		}
		<-e.accepted.Done()
		close(e.streams)
	}
}

func TestWhoOpenedAStreamCanWaitUntilItHasReachedSomething(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		far  func(*tunnel.Stream)
		want func(*testing.T, error)
	}{
		"taken":     {func(s *tunnel.Stream) { _ = s.Accept() }, func(t *testing.T, err error) { require.NoError(t, err) }},
		"it speaks": {func(s *tunnel.Stream) { _, _ = io.WriteString(s, "x") }, func(t *testing.T, err error) { require.NoError(t, err) }},
		"it ends":   {func(s *tunnel.Stream) { _ = s.CloseWrite() }, func(t *testing.T, err error) { require.NoError(t, err) }},
		"refused": {func(s *tunnel.Stream) { s.Reset(tunnel.Refused, "no") }, func(t *testing.T, err error) {
			var reset *tunnel.ResetError
			require.ErrorAs(t, err, &reset)
			require.Equal(t, tunnel.Refused, reset.Reason)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := connect(t, tunnel.Config{}).stream(t)
			answered := make(chan error, 1)
			go func() { answered <- near.WaitAccepted() }()
			tc.far(far)
			tc.want(t, <-answered)
		})
	}
}
