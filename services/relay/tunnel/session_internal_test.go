package tunnel

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A stream's reader is woken before the session blocks on the socket, also with TLS, which may have buffered data.
func TestReaderIsWokenBeforeSessionBlocks(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	client, server := tlsPair(t, dialled, accepted)
	echo := func(st *Stream) {
		_, _ = io.Copy(st, st)
		_ = st.CloseWrite()
	}
	near, far := NewSession(client, true, true, Config{}, nil), NewSession(server, false, true, Config{}, echo)
	var serving, exchanges sync.WaitGroup
	for _, s := range []*Session{near, far} {
		serving.Go(func() { _ = s.Serve() })
	}
	for i := range 4 {
		exchanges.Go(func() {
			st, err := near.Open(nil)
			if err != nil {
				t.Error(err)
				return
			}
			for j := range 100 {
				sent := bytes.Repeat([]byte{byte(i), byte(j), 7}, 1+j*j*(1+i*10))
				got := make([]byte, len(sent))
				var writing sync.WaitGroup
				writing.Go(func() { _, _ = st.Write(sent) })
				_, err := io.ReadFull(st, got)
				writing.Wait()
				if err != nil || !bytes.Equal(sent, got) {
					t.Errorf("the received bytes differ from the sent ones: %v", err)
					_ = near.Close()
					return
				}
			}
			_ = st.CloseWrite()
			if _, err := st.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("no end: %v", err)
			}
		})
	}
	exchanges.Wait()
	for _, s := range []*Session{near, far} {
		require.NoError(t, s.Close())
	}
	serving.Wait()
}

// A buffer returns the bytes in order and keeps no large memory when empty.
func FuzzBuffer(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Add([]byte{255, 0, 255, 1, 255, 128})
	f.Fuzz(func(t *testing.T, steps []byte) {
		var b []byte
		var at, received, read int
		for i, step := range steps {
			n := int(step) << 9
			if i%2 == 0 {
				b, at = grow(b, at, n)
				for range n {
					b = append(b, byte(received*7>>3))
					received++
				}
				continue
			}
			for range min(n, len(b)-at) {
				if b[at] != byte(read*7>>3) {
					t.Fatalf("byte %d differs", read)
				}
				at++
				read++
			}
			if at == len(b) {
				b, at = shrink(b), 0
				require.LessOrEqual(t, cap(b), smallBuffer)
			}
		}
		require.Equal(t, received-read, len(b)-at)
	})
}

// Repeated accepted frames are forwarded once.
func TestAcceptedIsForwardedOnce(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer far.Close()
	agents := NewSession(near, false, true, Config{}, nil)
	shared, other := net.Pipe()
	defer other.Close()
	peers := NewSession(shared, false, true, Config{}, nil) // nobody reads what it writes
	from := newStream(agents, 2, nil)
	agents.streams[2] = from
	to := newStream(peers, 1, nil)
	from.ForwardAccepted(to)
	for range 1_000_000 {
		require.NoError(t, agents.handle(frameHeader{kind: frameAccepted, stream: 2}, nil))
	}
	peers.writeMu.Lock()
	waiting := len(peers.pending) + len(peers.spare)
	peers.writeMu.Unlock()
	require.Less(t, waiting, 100)
	require.NoError(t, agents.Close())
	require.NoError(t, peers.Close())
}

// Stream ids wrap around and skip ids in use.
func TestStreamIDsWrapAround(t *testing.T) {
	t.Parallel()
	for dialled, want := range map[bool][]uint32{true: {1<<32 - 1, 1, 5}, false: {1<<32 - 2, 2, 6}} {
		near, far := net.Pipe()
		var reading sync.WaitGroup
		reading.Go(func() { _, _ = io.Copy(io.Discard, far) })
		s := NewSession(near, dialled, true, Config{}, nil)
		s.nextID = want[0]
		s.streams[want[1]+2] = newStream(s, want[1]+2, nil)
		for _, id := range want {
			st, err := s.Open(nil)
			require.NoError(t, err)
			require.Equal(t, id, st.id)
			require.True(t, s.isOwn(id))
		}
		require.NoError(t, s.Close())
		_ = far.Close()
		reading.Wait()
	}
}

// A connection may end on one side of a session while a stream is being opened on the other.
func TestOpenAfterSessionEndIsIgnored(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer far.Close()
	s := NewSession(near, false, true, Config{}, func(*Stream) { t.Error("a stream was opened after the end") })
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.handle(frameHeader{kind: frameOpen, stream: 1}, []byte("head")), ErrClosed)
}
