package proxy

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
	"lockstep.internal/services/relay/hub"
	"lockstep.internal/services/relay/tunnel"
)

// tcpProtocol is what a caller asks for that wants a target's bytes as they are.
const tcpProtocol = "tcp"

// connect joins the caller's connection with a target. The caller is told by 101 that the target was reached, or why not.
func (h *Handler) connect(w http.ResponseWriter, r *http.Request, v *visit) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), tcpProtocol) || r.ProtoMajor != 1 {
		h.refuse(w, r, v, fault.New(errcode.InvalidArgument, "a target's TCP stream is asked for in HTTP/1.1, with the headers Connection: Upgrade and Upgrade: %s", tcpProtocol))
		return
	}
	stream, err := h.reach(r.Context(), v)
	if err != nil {
		h.refuse(w, r, v, reason(r.Context(), err))
		return
	}
	// The connection is taken over before the caller is told: it may end its direction then, which the server that it is taken from would take for its leaving.
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err == nil {
		v.Status = http.StatusSwitchingProtocols
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", tcpProtocol)
		switched := &http.Response{StatusCode: v.Status, ProtoMajor: 1, ProtoMinor: 1, Header: w.Header()}
		if err = errors.Join(switched.Write(buffered), buffered.Flush(), conn.SetDeadline(time.Time{})); err != nil {
			_ = conn.Close() // nobody else does
		}
	}
	if err != nil {
		stream.Reset(tunnel.Cancelled, "the caller is gone")
		v.Error = err.Error()
		return
	}
	stop := context.AfterFunc(r.Context(), func() {
		stream.Reset(tunnel.Cancelled, "the caller is gone, or may not do this any more")
		_ = conn.Close() // both sides end
	})
	defer stop()
	sent, received, err := tunnel.Join(whole(conn, buffered.Reader), stream.Stream)
	v.sent.Add(sent)
	v.received.Add(received)
	if cut := context.Cause(r.Context()); cut != nil {
		err = cut
	}
	if err != nil {
		v.Error = err.Error()
	}
}

// reach opens a stream to the target, wherever the agent is connected.
func (h *Handler) reach(ctx context.Context, v *visit) (*hub.Route, error) {
	var attempt hub.Attempt
	for {
		found, err := h.cfg.Opener.Open(ctx, &attempt, v.Instruction)
		if err != nil {
			return nil, err
		}
		v.way.ConnectionID = found.Connection.ID
		stop := context.AfterFunc(ctx, func() { found.Reset(tunnel.Cancelled, "the caller is gone") })
		err = found.Taken()
		stop()
		var reset *tunnel.ResetError
		switch {
		case err == nil:
			return found, nil
		case errors.As(err, &reset) && reset.Untaken(), errors.Is(err, tunnel.ErrClosed):
			attempt.Failed(found, err) // nothing was sent
		default:
			return nil, err
		}
	}
}

// whole is the caller's connection with what had been read of it before it was taken over.
func whole(conn net.Conn, buffered *bufio.Reader) tunnel.Conn {
	if plain, is := conn.(tunnel.Conn); is && buffered.Buffered() == 0 {
		return plain
	}
	return &callerConn{conn, buffered}
}

type callerConn struct {
	net.Conn

	buffered *bufio.Reader
}

func (c *callerConn) Read(p []byte) (int, error) {
	if c.buffered.Buffered() > 0 {
		return c.buffered.Read(p) //nolint:wrapcheck // what is there
	}
	return c.Conn.Read(p) //nolint:wrapcheck // the connection's own
}

// NetConn is what is below.
func (c *callerConn) NetConn() net.Conn { return c.Conn }

// CloseWrite ends the direction to the caller.
func (c *callerConn) CloseWrite() error {
	if half, can := c.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}
