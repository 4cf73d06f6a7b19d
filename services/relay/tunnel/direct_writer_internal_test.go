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

// direct is a stream that is joined with a target, and what a session's reader does with what comes for it, done by the test.
type direct struct {
	*Stream

	target *net.TCPConn
	// joined is what has become of the stream, written how much of it went on.
	joined  chan error
	written int64
}

func newDirect(t *testing.T, window int) *direct {
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
	d := &direct{Stream: newStream(s, 1, nil), target: accepted.(*net.TCPConn), joined: make(chan error, 1)}
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

// waiting returns when who writes to the target waits for something to write.
func (d *direct) waiting() {
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

// queued is how much waits for who writes to the target.
func (d *direct) queued() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unread
}

func (d *direct) come(t *testing.T, data []byte) {
	t.Helper()
	require.NoError(t, d.s.deliver(d.id, data, true))
}

func TestASmallFrameGoesStraightToTheTarget(t *testing.T) {
	t.Parallel()
	d := newDirect(t, minWindow)
	d.waiting()
	d.come(t, []byte("question"))
	require.Zero(t, d.queued(), "nobody has to be woken for it")
	require.Nil(t, d.s.late)
	require.NoError(t, d.s.handle(header{kind: frameEnd, stream: d.id}, nil))
	got, err := io.ReadAll(d.target)
	require.NoError(t, err)
	require.Equal(t, "question", string(got), "the end comes behind what was written")
	require.NoError(t, d.target.Close())
	require.NoError(t, <-d.joined)
	require.EqualValues(t, 8, d.written)
}

// What a target does not take at once goes on when it takes it, before what came later, and is credited once.
func TestWhatATargetTakesInPartGoesOnInOrder(t *testing.T) {
	t.Parallel()
	const window = 1 << 20
	d := newDirect(t, window)
	d.waiting()
	var sent []byte
	piece := func() []byte {
		p := make([]byte, smallBuffer-1)
		for i := range p {
			p[i] = byte((len(sent) + i) * 7 >> 3)
		}
		sent = append(sent, p...)
		return p
	}
	for d.queued() == 0 { // the target does not read: until its buffers are full, and something was taken in part or not at all
		d.come(t, piece())
		require.Less(t, len(sent), window/2)
	}
	for range 20 {
		d.come(t, piece())
	}
	require.Greater(t, d.queued(), 20*(smallBuffer-1)-1)
	d.s.wakeLate() // as before the connection is read again
	require.NoError(t, d.s.handle(header{kind: frameEnd, stream: d.id}, nil))
	got, err := io.ReadAll(d.target)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	require.NoError(t, d.target.Close())
	require.NoError(t, <-d.joined)
	require.EqualValues(t, len(sent), d.written)
	require.Zero(t, d.queued())
	require.Equal(t, len(sent), d.unreported, "the other side is owed each byte once")
}

// While something waits, what comes waits behind it, even if the target would take it now.
func TestNothingOvertakesWhatWaits(t *testing.T) {
	t.Parallel()
	d := newDirect(t, minWindow)
	d.waiting()
	large := bytes.Repeat([]byte("a"), smallBuffer+1)
	d.come(t, large)
	require.Equal(t, len(large), d.queued(), "it is not small")
	d.come(t, []byte("b"))
	require.Equal(t, len(large)+1, d.queued())
	d.s.wakeLate()
	got := make([]byte, len(large)+1)
	_, err := io.ReadFull(d.target, got)
	require.NoError(t, err)
	require.Equal(t, string(large)+"b", string(got))
	d.waiting()
	require.NoError(t, d.s.deliver(d.id, []byte("part of a frame"), false))
	require.Equal(t, 15, d.queued(), "the rest comes at once")
}

func TestATargetThatFailsWhileItIsWrittenStraightFailsTheStream(t *testing.T) {
	t.Parallel()
	d := newDirect(t, minWindow)
	d.waiting()
	require.NoError(t, d.target.SetLinger(0))
	require.NoError(t, d.target.Close())
	for d.Err() == nil { // the reset is under way
		d.come(t, []byte("x"))
		d.s.wakeLate()
		runtime.Gosched()
	}
	require.Error(t, <-d.joined)
	require.NoError(t, d.s.deliver(d.id, []byte("more"), true), "the session goes on")
}

// What is written straight is credited, by who does not wait for the session to be written.
func TestWhatGoesStraightIsCredited(t *testing.T) {
	t.Parallel()
	d := newDirect(t, minWindow)
	go func() { _, _ = io.Copy(io.Discard, d.target) }() // until it is closed
	d.s.out.Lock()
	d.s.flushing = true // as if the connection was full
	d.s.out.Unlock()
	piece := make([]byte, 1<<10)
	for range 3 * minWindow / len(piece) {
		d.waiting()
		d.come(t, piece)
		d.s.wakeLate()
	}
	d.waiting()
	require.Less(t, d.unreported, minWindow/2)
	d.s.out.Lock()
	defer d.s.out.Unlock()
	require.GreaterOrEqual(t, d.s.frames, 5, "frames that tell it")
}
