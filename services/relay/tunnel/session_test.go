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
	"golang.org/x/net/nettest"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/services/relay/tunnel"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// sessionPair has both sides of a session over TCP.
type sessionPair struct {
	dialled, accepted *tunnel.Session
	// streams has the accepting side's end of each stream.
	streams chan *tunnel.Stream
	conns   [2]net.Conn
}

func newSessionPair(t testing.TB, cfg tunnel.Config) *sessionPair {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	e := &sessionPair{streams: make(chan *tunnel.Stream, 1000), conns: [2]net.Conn{dialled, accepted}}
	e.dialled = tunnel.NewSession(dialled, true, false, cfg, func(s *tunnel.Stream) {
		s.Reset(tunnel.Refused, "not expected")
	})
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

// stream opens a stream on the dialling side, and returns both its ends.
func (e *sessionPair) stream(t testing.TB) (near, far *tunnel.Stream) {
	t.Helper()
	near, err := e.dialled.Open([]byte("head"))
	require.NoError(t, err)
	far = <-e.streams
	require.Equal(t, "head", string(far.Metadata()))
	return near, far
}

func TestStreamImplementsNetConn(t *testing.T) {
	t.Parallel()
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		e := newSessionPair(t, tunnel.Config{})
		near, far := e.stream(t)
		return near, far, func() {
			_ = e.dialled.Close()
			_ = e.accepted.Close()
		}, nil
	})
}

func TestHalfClose(t *testing.T) {
	t.Parallel()
	near, far := newSessionPair(t, tunnel.Config{}).stream(t)
	_, err := near.Write([]byte("request"))
	require.NoError(t, err)
	require.NoError(t, near.CloseWrite())
	request, err := io.ReadAll(far)
	require.NoError(t, err)
	require.Equal(t, "request", string(request))
	_, err = near.Write([]byte("more"))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = far.Write([]byte("response"))
	require.NoError(t, err)
	require.NoError(t, far.Close())
	response, err := io.ReadAll(near)
	require.NoError(t, err)
	require.Equal(t, "response", string(response))
}

func TestEveryByteArrivesInOrder(t *testing.T) {
	t.Parallel()
	e := newSessionPair(t, tunnel.Config{Window: 10_000})
	var group errgroup.Group
	for i := range 20 {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		group.Go(func() error {
			sent := make([]byte, 1+random.IntN(1<<20))
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
					n := min(len(rest), 1+random.IntN(100_000))
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
				return errors.New("the received bytes differ from the sent ones")
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

// A stopped reader blocks only its own writer.
func TestUnreadStreamBlocksOnlyItsWriter(t *testing.T) {
	t.Parallel()
	const window = 64 << 10
	e := newSessionPair(t, tunnel.Config{Window: window})
	blocked, blockedPeer := e.stream(t)
	n, err := blocked.Write(make([]byte, window))
	require.NoError(t, err)
	require.Equal(t, window, n, "exactly one window is buffered")
	require.NoError(t, blocked.SetWriteDeadline(time.Now().Add(time.Second)))
	n, err = blocked.Write(make([]byte, 10*window))
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
	// Reading unblocks the writer.
	require.NoError(t, blocked.SetWriteDeadline(time.Time{}))
	go func() {
		_, _ = blocked.Write(make([]byte, 10*window))
		_ = blocked.CloseWrite()
	}()
	all, err := io.ReadAll(blockedPeer)
	require.NoError(t, err)
	require.Len(t, all, 11*window)
}

// An HTTP client closes a connection while another goroutine of it writes.
func TestCloseEndsAWriteThatWaitsForTheWindow(t *testing.T) {
	t.Parallel()
	const window = 64 << 10
	near, far := newSessionPair(t, tunnel.Config{Window: window}).stream(t)
	require.NoError(t, far.CloseWrite())
	_, err := near.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	written := make(chan error, 1)
	go func() {
		_, err := near.Write(make([]byte, 2*window))
		written <- err
	}()
	_, err = io.ReadFull(far, make([]byte, window/4))
	require.NoError(t, err)
	require.NoError(t, near.Close())
	require.ErrorIs(t, <-written, net.ErrClosed)
}

func TestResetEndsBothSides(t *testing.T) {
	t.Parallel()
	near, far := newSessionPair(t, tunnel.Config{}).stream(t)
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

func TestWriteToClosedReaderIsReset(t *testing.T) {
	t.Parallel()
	near, far := newSessionPair(t, tunnel.Config{Window: 1000}).stream(t)
	require.NoError(t, far.Close())
	_, err := io.Copy(near, zeros{})
	var reset *tunnel.ResetError
	require.ErrorAs(t, err, &reset)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestStreamsAreLimited(t *testing.T) {
	t.Parallel()
	e := newSessionPair(t, tunnel.Config{MaxStreams: 3})
	var open []*tunnel.Stream
	for range 3 {
		near, _ := e.stream(t)
		open = append(open, near)
	}
	rejected, err := e.dialled.Open(nil)
	require.NoError(t, err)
	_, err = rejected.Read(make([]byte, 1))
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
	e := newSessionPair(t, tunnel.Config{})
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

// The peer is silent, as after a firewall dropped the connection state.
func TestSilentConnectionIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		s := tunnel.NewSession(near, true, false, tunnel.Config{}, nil)
		startedAt := time.Now()
		require.ErrorContains(t, s.Serve(), "nothing was received for 40s")
		require.Equal(t, 40*time.Second, time.Since(startedAt))
	})
}

func TestIdleConnectionStaysOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		dialled := tunnel.NewSession(near, true, false, tunnel.Config{}, nil)
		accepted := tunnel.NewSession(far, false, false, tunnel.Config{}, func(s *tunnel.Stream) { _ = s.Close() })
		go func() { _ = dialled.Serve() }()
		go func() { _ = accepted.Serve() }()
		time.Sleep(time.Hour) // by the clock of synctest
		_, err := dialled.Open(nil)
		require.NoError(t, err)
		require.NoError(t, dialled.Close())
		<-accepted.Done()
	})
}

// FuzzSession sends arbitrary bytes from the peer.
func FuzzSession(f *testing.F) {
	frame := func(kind byte, stream byte, payload string) []byte {
		b := append([]byte{kind, 0, 0, byte(len(payload)), 0, 0, 0, stream}, payload...)
		return append([]byte{0x82, byte(len(b))}, b...)
	}
	frames := func(all ...[]byte) []byte { return bytes.Join(all, nil) }
	settings, drain, drained := frame(9, 0, "\x00\x02\x00\x00"), frame(6, 0, ""), frame(7, 0, "")
	f.Add(frames(frame(1, 2, "head"), frame(2, 2, "data"), frame(3, 2, ""), frame(5, 2, "\x00\x00\x01\x00"),
		frame(4, 2, "why"), drain), false)
	f.Add([]byte{0x89, 3, 'a', 'b', 'c', 0x88, 0}, false)
	f.Add([]byte{0x82, 126, 0, 200}, false)
	f.Add([]byte{0x82, 127, 0, 0, 0, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 2}, false)
	f.Add(frames(settings, frame(8, 1, ""), frame(2, 1, "data"), frame(3, 1, "")), false)
	f.Add(frames(settings, settings), false)
	f.Add(frames(frame(9, 0, "\x00\x00\x00\x01")), false)
	f.Add(frames(drain, frame(1, 2, "head"), drain, frame(4, 1, "\x01why")), false)
	f.Add(frames(settings, frame(8, 1, ""), frame(8, 1, ""), frame(8, 2, ""), drained, frame(3, 1, "")), true)
	f.Add(frames(drained, drain, drained, frame(1, 2, "head"), frame(4, 1, "\x01why")), true)
	f.Fuzz(func(t *testing.T, sent []byte, drains bool) {
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
		if drains {
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

func TestDrainedSessionEndsAfterLastStream(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(near, far *tunnel.Stream){
		"ended": func(near, far *tunnel.Stream) { _, _ = near.CloseWrite(), far.CloseWrite() },
		"reset": func(_, far *tunnel.Stream) { far.Reset(tunnel.Cancelled, "no longer needed") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newSessionPair(t, tunnel.Config{})
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
		e := newSessionPair(t, tunnel.Config{})
		e.dialled.Drain()
		<-e.dialled.Done()
		<-e.accepted.Done()
	})
}

// A stream that is opened while the peer drains is served, or is reset with NotAccepted.
func TestStreamsOpenedDuringDrain(t *testing.T) {
	t.Parallel()
	for range 50 {
		e := newSessionPair(t, tunnel.Config{})
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
			require.Equal(t, tunnel.NotAccepted, reset.Reason)
		}
		<-e.accepted.Done()
		close(e.streams)
	}
}

func TestWaitAccepted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		far  func(*tunnel.Stream)
		want func(*testing.T, error)
	}{
		"accepted": {func(s *tunnel.Stream) { _ = s.Accept() }, func(t *testing.T, err error) { require.NoError(t, err) }},
		"data": {
			func(s *tunnel.Stream) { _, _ = io.WriteString(s, "x") },
			func(t *testing.T, err error) { require.NoError(t, err) },
		},
		"end": {
			func(s *tunnel.Stream) { _ = s.CloseWrite() },
			func(t *testing.T, err error) { require.NoError(t, err) },
		},
		"refused": {func(s *tunnel.Stream) { s.Reset(tunnel.Refused, "no") }, func(t *testing.T, err error) {
			var reset *tunnel.ResetError
			require.ErrorAs(t, err, &reset)
			require.Equal(t, tunnel.Refused, reset.Reason)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := newSessionPair(t, tunnel.Config{}).stream(t)
			result := make(chan error, 1)
			go func() { result <- near.WaitAccepted() }()
			tc.far(far)
			tc.want(t, <-result)
		})
	}
}
