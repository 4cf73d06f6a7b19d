package webfront

import (
	"bufio"
	"mime"
	"net"
	"net/http"

	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/activity"
)

// countingWriter counts the answer of a workspace, and what the person sends after an upgrade.
type countingWriter struct {
	http.ResponseWriter

	session   *activity.Session
	webSocket bool
}

// count begins to count a request. A request is input of the person; one that only opens a stream is not: pages open
// streams again by themselves.
func (f *Front) count(w http.ResponseWriter, r *http.Request, grant *access.Grant) *countingWriter {
	c := &countingWriter{ResponseWriter: w, session: f.Activity.Open(grant.Entry.ID, grant.UserID)}
	c.webSocket = isWebSocket(r)
	if !isStream(r) {
		c.session.Request(r.Method+" "+r.URL.Path, int(max(r.ContentLength, 0)))
	}
	return c
}

func isWebSocket(r *http.Request) bool { return r.Header.Get("Sec-WebSocket-Key") != "" }

// isStream reports whether a request opens a stream: a WebSocket or server-sent events.
func isStream(r *http.Request) bool {
	accepted, _, err := mime.ParseMediaType(r.Header.Get("Accept"))
	return isWebSocket(r) || err == nil && accepted == "text/event-stream"
}

// Write implements [http.ResponseWriter].
func (c *countingWriter) Write(data []byte) (int, error) {
	n, err := c.ResponseWriter.Write(data)
	c.session.Sent(n)
	return n, err //nolint:wrapcheck // the writer's own
}

// Unwrap is for [http.ResponseController].
func (c *countingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// Hijack counts what the person sends over the connection.
func (c *countingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // the controller's own
	}
	return &countingConn{Conn: conn, session: c.session, frames: frames{every: !c.webSocket}}, buffered, nil
}

// countingConn counts messages of a WebSocket from the person, or all bytes of another protocol.
type countingConn struct {
	net.Conn

	session *activity.Session
	frames  frames // used by Read alone
}

// Read implements [net.Conn].
func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if input := c.frames.input(p[:n]); input > 0 {
		c.session.Input(input)
	}
	return n, err //nolint:wrapcheck // the connection's own
}

// Write implements [net.Conn].
func (c *countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.session.Sent(n)
	return n, err //nolint:wrapcheck // the connection's own
}

// frames finds the messages in the bytes of a WebSocket (RFC 6455, section 5.2). Control frames are none: browsers
// answer pings by themselves.
type frames struct {
	every  bool // all bytes are messages
	header []byte
	left   uint64 // bytes of the payload of the frame
	data   bool   // the frame belongs to a message
}

const (
	// firstControl is the lowest opcode of control frames.
	firstControl = 8
	maskBytes    = 4
	// length16 and length64 announce a length of 2 and of 8 bytes.
	length16, length64 = 126, 127
)

// input returns how many of the bytes are payload of messages. An empty message counts as one byte.
func (f *frames) input(data []byte) int {
	if f.every {
		return len(data)
	}
	input := 0
	for len(data) > 0 {
		if f.left > 0 {
			n := int(min(f.left, uint64(len(data))))
			if f.data {
				input += n
			}
			f.left -= uint64(n)
			data = data[n:]
			continue
		}
		f.header, data = append(f.header, data[0]), data[1:]
		length, complete := headerLength(f.header)
		if !complete {
			continue
		}
		f.data, f.left, f.header = f.header[0]&0xf < firstControl, length, f.header[:0]
		if f.data && length == 0 {
			input++
		}
	}
	return input
}

// headerLength returns the length of the payload, and false while the header of the frame is not complete.
func headerLength(header []byte) (length uint64, complete bool) {
	const fixed = 2
	if len(header) < fixed {
		return 0, false
	}
	size, extended := fixed, 0
	switch short := header[1] & 0x7f; short {
	case length16:
		extended = 2
	case length64:
		extended = 8
	default:
		length = uint64(short)
	}
	size += extended
	if header[1]&0x80 != 0 {
		size += maskBytes
	}
	if len(header) < size {
		return 0, false
	}
	for _, b := range header[fixed : fixed+extended] {
		length = length<<8 | uint64(b)
	}
	return length, true
}
