// Package unreadflood attacks an HTTP/2 server without TLS: its connections open many streams, and grant no window for
// the responses.
package unreadflood

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// MaxGrowth is how much memory a Flood may cost, in bytes.
const MaxGrowth = 64 << 20

const timeout = time.Minute

// Conn is a connection of an attacker. It reads what the server sends.
type Conn struct {
	t      testing.TB
	conn   net.Conn
	framer *http2.Framer
	host   string

	mu      sync.Mutex
	stream  uint32 // the last one that was opened
	seen    Seen
	changed chan struct{} // closed and replaced after each change
}

// Seen is what the server has sent.
type Seen struct {
	// Status of the response of each stream.
	Status map[uint32]int
	// Bytes of the body of each stream.
	Bytes map[uint32]int
	// Ended and Reset streams.
	Ended, Reset map[uint32]bool
	// Closed reports that the server closed the connection.
	Closed bool
}

// Open opens a connection. The test closes it at its end.
func Open(t testing.TB, address string) *Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	return On(t, conn, address)
}

// On uses a connection to host. The test closes it at its end.
func On(t testing.TB, conn net.Conn, host string) *Conn {
	t.Helper()
	c := &Conn{
		t: t, conn: conn, framer: http2.NewFramer(conn, conn), host: host, changed: make(chan struct{}),
		seen: Seen{Status: map[uint32]int{}, Bytes: map[uint32]int{}, Ended: map[uint32]bool{}, Reset: map[uint32]bool{}},
	}
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err := io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	require.NoError(t, c.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	ready := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() { c.read(sync.OnceFunc(func() { close(ready) })) })
	t.Cleanup(func() {
		_ = conn.Close()
		reading.Wait()
	})
	<-ready
	return c
}

// Get opens a stream with a GET request and returns its id.
func (c *Conn) Get(path string) uint32 {
	c.t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", c.host}, {":path", path}} {
		require.NoError(c.t, encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream == 0 {
		c.stream = 1
	} else {
		c.stream += 2
	}
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: c.stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
	})
	require.NoError(c.t, err)
	return c.stream
}

// Grant lets the server send more bytes of a response.
func (c *Conn) Grant(stream uint32, bytes int) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range []uint32{0, stream} {
		require.NoError(c.t, c.framer.WriteWindowUpdate(id, uint32(bytes)))
	}
}

// Await waits until the condition holds.
func (c *Conn) Await(holds func(Seen) bool) {
	c.t.Helper()
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	for {
		c.mu.Lock()
		held, changed := holds(c.seen), c.changed
		c.mu.Unlock()
		if held {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			require.Fail(c.t, "the server did not send what was expected")
		}
	}
}

func (c *Conn) read(ready func()) {
	for {
		frame, err := c.framer.ReadFrame()
		c.mu.Lock()
		if err != nil && !errors.As(err, new(http2.StreamError)) {
			c.seen.Closed = true
		}
		c.handle(frame)
		closed := c.seen.Closed
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
		if closed {
			ready()
			return
		}
		if _, settings := frame.(*http2.SettingsFrame); settings {
			ready()
		}
	}
}

// handle is called with the mutex held.
func (c *Conn) handle(frame http2.Frame) {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			_ = c.framer.WriteSettingsAck() // fails when the connection is closed
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = c.framer.WritePing(true, f.Data) // fails when the connection is closed
		}
	case *http2.MetaHeadersFrame:
		c.seen.Status[f.StreamID], _ = strconv.Atoi(f.PseudoValue("status"))
		c.seen.Ended[f.StreamID] = f.StreamEnded()
	case *http2.DataFrame:
		c.seen.Bytes[f.StreamID] += len(f.Data())
		c.seen.Ended[f.StreamID] = f.StreamEnded()
	case *http2.RSTStreamFrame:
		c.seen.Reset[f.StreamID] = true
	}
}

// Answered is how many streams have a status or were reset.
func (s Seen) Answered() int {
	answered := len(s.Status)
	for id := range s.Reset {
		if _, also := s.Status[id]; !also {
			answered++
		}
	}
	return answered
}

// Flood opens connections with the given number of streams each, and waits until all are answered or were reset. It
// returns by how many bytes the memory in use has grown, with that of the attacker, who runs in the same process. No
// other test may run in the process.
func Flood(t testing.TB, address, path string, connections, streams int) int64 {
	t.Helper()
	before := memory()
	for range connections {
		c := Open(t, address)
		for range streams {
			c.Get(path)
		}
		c.Await(func(s Seen) bool { return s.Closed || s.Answered() == streams })
	}
	return int64(memory()) - int64(before)
}

// memory is the heap and the stacks in use after a garbage collection, in bytes.
func memory() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc + stats.StackInuse
}
