package service

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Handover gives connections to a server of HTTP that it has not accepted itself, such as those that one of its handlers had taken over ([http.Hijacker]) and has no more use for. It is
// made by [NewHandover], and may be used by many goroutines.
type Handover struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

// NewHandover makes one.
func NewHandover() *Handover {
	return &Handover{conns: make(chan net.Conn), ended: make(chan struct{})}
}

// Give hands a connection over. unread is what has been read of it and is to be read again, secure what its TLS says, nil without. It is closed if the server has ended.
func (h *Handover) Give(conn net.Conn, unread []byte, secure *tls.ConnectionState) {
	select {
	case h.conns <- &handed{Conn: conn, unread: unread, secure: secure}:
	case <-h.ended:
		_ = conn.Close() // nobody serves it
	}
}

// Serve has a server serve what is given, until it is closed. [Handover.Prepare] has been called before.
func (h *Handover) Serve(server *http.Server) error {
	return server.Serve(handovers{h}) //nolint:wrapcheck // the server's own
}

// Prepare a server that serves nothing yet: its handlers see of a connection's TLS what they would have seen before, and [HandedOver].
func (h *Handover) Prepare(server *http.Server) {
	handler := server.Handler
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if c, is := conn.(*handed); is {
			return context.WithValue(ctx, handedKey{}, c)
		}
		return ctx
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, is := r.Context().Value(handedKey{}).(*handed); is {
			r.TLS = c.secure
			c.requests.Add(1)
		}
		handler.ServeHTTP(w, r)
	})
}

// HandedOver says that a request is the first one of a connection that was given: who gave it has not served it.
func HandedOver(r *http.Request) bool {
	c, is := r.Context().Value(handedKey{}).(*handed)
	return is && c.requests.Load() == 1
}

type handedKey struct{}

// handed is a connection that the server was given.
type handed struct {
	net.Conn

	unread []byte
	secure *tls.ConnectionState
	// requests that were begun.
	requests atomic.Int64
}

func (h *handed) Read(p []byte) (int, error) {
	if len(h.unread) > 0 {
		n := copy(p, h.unread)
		h.unread = h.unread[n:]
		return n, nil
	}
	return h.Conn.Read(p) //nolint:wrapcheck // the connection's own
}

// NetConn is what is below. What was read of it before is not to be read there.
func (h *handed) NetConn() net.Conn { return h.Conn }

// CloseWrite ends the direction to the other side, for a handler that takes the connection over and knows nothing of what it was, and for the server.
func (h *handed) CloseWrite() error {
	if half, can := h.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Reclaim a connection that a handler has taken over: where it had been given, this is what was given, and what of it the server has not read. Others are returned as they are.
func Reclaim(conn net.Conn) (given net.Conn, unread []byte) {
	if h, is := conn.(*handed); is {
		return h.Conn, h.unread
	}
	return conn, nil
}

// handovers is a listener.
type handovers struct{ *Handover }

func (h handovers) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.ended:
		return nil, net.ErrClosed
	}
}

func (h handovers) Close() error {
	h.once.Do(func() { close(h.ended) })
	return nil
}

// Addr is none: nobody can connect to it.
func (handovers) Addr() net.Addr { return &net.TCPAddr{} }
