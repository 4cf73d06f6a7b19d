package forward

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/tunnel"
)

// tcpProtocol is the value of the Upgrade header for TCP streams.
const tcpProtocol = "tcp"

// joinTCP joins the caller's connection with a target. It responds 101 after the agent has reached the target.
func (h *Handler) joinTCP(w http.ResponseWriter, r *http.Request, p *proxiedRequest) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), tcpProtocol) || r.ProtoMajor != 1 {
		h.fail(w, r, p, fault.New(errcode.InvalidArgument,
			"a TCP stream needs HTTP/1.1 with the headers Connection: Upgrade and Upgrade: %s", tcpProtocol))
		return
	}
	state := connections.RetryState{Deadline: p.deadline, Agent: p.agent.String()}
	stream, err := openAccepted(r.Context(), h.cfg.Opener, &state, p) // the caller's bytes are sent after that
	if err != nil {
		h.fail(w, r, p, publicError(r.Context(), err))
		return
	}
	// Hijack before the 101: after the 101 the caller may half-close, which net/http would report as a disconnect.
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err == nil {
		p.Status = http.StatusSwitchingProtocols
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", tcpProtocol)
		switched := &http.Response{StatusCode: p.Status, ProtoMajor: 1, ProtoMinor: 1, Header: w.Header()}
		if err = errors.Join(switched.Write(buffered), buffered.Flush(), conn.SetDeadline(time.Time{})); err != nil {
			_ = conn.Close() // the server does not close it
		}
	}
	if err != nil {
		stream.Reset(tunnel.Cancelled, "the caller has gone")
		p.Error = err.Error()
		return
	}
	stop := context.AfterFunc(r.Context(), func() {
		stream.Reset(tunnel.Cancelled, "the caller has gone, or lost access")
		_ = conn.Close() // unblocks Join
	})
	defer stop()
	sent, received, err := tunnel.Join(withBuffered(conn, buffered.Reader), stream.Stream)
	p.sent.Add(sent)
	p.received.Add(received)
	if cause := context.Cause(r.Context()); cause != nil {
		err = cause
	}
	if err != nil {
		p.Error = err.Error()
	}
}

// withBuffered returns conn with the bytes that net/http had buffered before the hijack.
func withBuffered(conn net.Conn, buffered *bufio.Reader) tunnel.Conn {
	if plain, ok := conn.(tunnel.Conn); ok && buffered.Buffered() == 0 {
		return plain
	}
	return &bufferedConn{conn, buffered}
}

type bufferedConn struct {
	net.Conn

	buffered *bufio.Reader
}

func (c *bufferedConn) Read(p []byte) (int, error) {
	if c.buffered.Buffered() > 0 {
		return c.buffered.Read(p) //nolint:wrapcheck // from memory
	}
	return c.Conn.Read(p) //nolint:wrapcheck // the connection's own
}

// NetConn is the underlying connection.
func (c *bufferedConn) NetConn() net.Conn { return c.Conn }

// CloseWrite ends the direction to the caller.
func (c *bufferedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
