package tunnel

import (
	"bytes"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// directFixture is a stream joined with a target. The test delivers frames in place of the session's reader.
type directFixture struct {
	*Stream

	target *net.TCPConn
	// joined receives the result of Join; written is the number of forwarded bytes.
	joined  chan error
	written int64
}

func newDirectFixture(t *testing.T, window int) *directFixture {
	t.Helper()
	near, far := net.Pipe()
	s := NewSession(near, false, true, Config{Window: window}, nil)
	var others sync.WaitGroup
	others.Go(func() { _, _ = io.Copy(io.Discard, far) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	d := &directFixture{Stream: newStream(s, 1, nil), target: accepted.(*net.TCPConn), joined: make(chan error, 1)}
	s.streams[1] = d.Stream
	to := dialled.(*net.TCPConn)
	require.NoError(t, to.SetWriteBuffer(4<<10))
	require.NoError(t, d.target.SetReadBuffer(4<<10))
	others.Go(func() {
		n, _, err := Join(d.Stream, to)
		d.written = n
		d.joined <- err
	})
	t.Cleanup(func() {
		_ = s.Close()
		_ = far.Close()
		_ = accepted.Close()
		others.Wait()
	})
	return d
}

// awaitIdle returns when WriteTo waits for data.
func (d *directFixture) awaitIdle() {
	for {
		d.mu.Lock()
		waiting := d.directWriter != nil && d.at == len(d.in)
		d.mu.Unlock()
		if waiting {
			return
		}
		runtime.Gosched()
	}
}

// queued returns the number of unread bytes.
func (d *directFixture) queued() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unread
}

// deliver passes the payload of a frame to the stream.
func (d *directFixture) deliver(t *testing.T, data []byte) {
	t.Helper()
	require.NoError(t, d.s.deliver(d.id, data, true))
}

func TestSmallFrameIsWrittenDirectly(t *testing.T) {
	t.Parallel()
	d := newDirectFixture(t, minWindow)
	d.awaitIdle()
	d.deliver(t, []byte("request"))
	require.Zero(t, d.queued(), "no goroutine is woken")
	require.Nil(t, d.s.unsignaled)
	require.NoError(t, d.s.handle(frameHeader{kind: frameEnd, stream: d.id}, nil))
	got, err := io.ReadAll(d.target)
	require.NoError(t, err)
	require.Equal(t, "request", string(got), "the end follows the data")
	require.NoError(t, d.target.Close())
	require.NoError(t, <-d.joined)
	require.EqualValues(t, len("request"), d.written)
}

// Bytes that the target does not accept at once are written later, in order, and are credited once.
func TestPartialDirectWriteKeepsOrder(t *testing.T) {
	t.Parallel()
	const window = 1 << 20
	d := newDirectFixture(t, window)
	d.awaitIdle()
	var sent []byte
	piece := func() []byte {
		p := make([]byte, smallBuffer-1)
		for i := range p {
			p[i] = byte((len(sent) + i) * 7 >> 3)
		}
		sent = append(sent, p...)
		return p
	}
	// The target does not read. Write until its buffers are full, and data is queued.
	for d.queued() == 0 {
		d.deliver(t, piece())
		require.Less(t, len(sent), window/2)
	}
	for range 20 {
		d.deliver(t, piece())
	}
	require.Greater(t, d.queued(), 20*(smallBuffer-1)-1)
	d.s.wakeStreamReader() // as before the connection is read again
	require.NoError(t, d.s.handle(frameHeader{kind: frameEnd, stream: d.id}, nil))
	got, err := io.ReadAll(d.target)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	require.NoError(t, d.target.Close())
	require.NoError(t, <-d.joined)
	require.EqualValues(t, len(sent), d.written)
	require.Zero(t, d.queued())
	require.Equal(t, len(sent), d.uncredited, "each byte is credited once")
}

// While data is queued, new data is queued behind it.
func TestDirectWriteDoesNotOvertakeQueue(t *testing.T) {
	t.Parallel()
	d := newDirectFixture(t, minWindow)
	d.awaitIdle()
	large := bytes.Repeat([]byte("a"), smallBuffer+1)
	d.deliver(t, large)
	require.Equal(t, len(large), d.queued(), "a large frame is queued")
	d.deliver(t, []byte("b"))
	require.Equal(t, len(large)+1, d.queued())
	d.s.wakeStreamReader()
	got := make([]byte, len(large)+1)
	_, err := io.ReadFull(d.target, got)
	require.NoError(t, err)
	require.Equal(t, string(large)+"b", string(got))
	d.awaitIdle()
	require.NoError(t, d.s.deliver(d.id, []byte("part of a frame"), false))
	require.Equal(t, 15, d.queued(), "part of a frame is queued: its rest follows at once")
}

func TestDirectWriteErrorFailsStream(t *testing.T) {
	t.Parallel()
	d := newDirectFixture(t, minWindow)
	d.awaitIdle()
	require.NoError(t, d.target.SetLinger(0))
	require.NoError(t, d.target.Close())
	for d.Err() == nil { // until the reset arrives
		d.deliver(t, []byte("x"))
		d.s.wakeStreamReader()
		runtime.Gosched()
	}
	require.Error(t, <-d.joined)
	require.NoError(t, d.s.deliver(d.id, []byte("more"), true), "the session stays open")
}

// Direct writes are credited without blocking on the session's writer.
func TestDirectWriteSendsWindowUpdates(t *testing.T) {
	t.Parallel()
	d := newDirectFixture(t, minWindow)
	go func() { _, _ = io.Copy(io.Discard, d.target) }() // until it is closed
	d.s.writeMu.Lock()
	d.s.flushing = true // as if the connection did not accept more
	d.s.writeMu.Unlock()
	piece := make([]byte, 1<<10)
	for range 3 * minWindow / len(piece) {
		d.awaitIdle()
		d.deliver(t, piece)
		d.s.wakeStreamReader()
	}
	d.awaitIdle()
	require.Less(t, d.uncredited, minWindow/2)
	d.s.writeMu.Lock()
	defer d.s.writeMu.Unlock()
	require.GreaterOrEqual(t, d.s.frames, 5, "window frames")
}
