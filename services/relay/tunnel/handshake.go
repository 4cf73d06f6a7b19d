package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"lockstep.internal/libs/proxy"
)

const (
	// handshakeTimeout of TCP, TLS and the upgrade together.
	handshakeTimeout = 15 * time.Second
	// handshakeBuffer for the heads of the upgrade.
	handshakeBuffer = 4 << 10
	// maxRefusal is the longest text of a [HandshakeError], in bytes.
	maxRefusal = 512
)

// Upgrade upgrades a request to a tunnel. header is added to the response. On error it has sent a response.
// encrypted reports whether the connection uses TLS.
func Upgrade(w http.ResponseWriter, r *http.Request, header http.Header) (conn net.Conn, encrypted bool, err error) {
	if r.Header.Get("Origin") != "" {
		http.Error(w, "browsers cannot open tunnels", http.StatusForbidden)
		return nil, false, errors.New("the request has the header Origin: it is from a browser")
	}
	if !strings.Contains(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), Subprotocol) {
		http.Error(w, "a tunnel needs the WebSocket subprotocol "+Subprotocol, http.StatusBadRequest)
		return nil, false, fmt.Errorf("the request does not have the subprotocol %s", Subprotocol)
	}
	upgrader := websocket.Upgrader{
		HandshakeTimeout: handshakeTimeout, ReadBufferSize: handshakeBuffer, WriteBufferSize: handshakeBuffer,
		Subprotocols: []string{Subprotocol},
	}
	ws, err := upgrader.Upgrade(w, r, header)
	if err != nil {
		return nil, false, fmt.Errorf("upgrade to a tunnel: %w", err)
	}
	return ws.NetConn(), r.TLS != nil, nil
}

// HandshakeError is the response of a server that did not upgrade.
type HandshakeError struct {
	Status int
	Text   string
	// RetryAfter of the response; 0 without one.
	RetryAfter time.Duration
}

func (e *HandshakeError) Error() string {
	return fmt.Sprintf("the relay responded %d %s: %s", e.Status, http.StatusText(e.Status), e.Text)
}

// Dialer dials tunnels, through the proxy of the environment (HTTPS_PROXY, NO_PROXY).
type Dialer struct {
	// TLS may be nil.
	TLS *tls.Config
	// NoProxy ignores the environment.
	NoProxy bool
}

// dialBelow dials the connection below TLS and the WebSocket.
func (d Dialer) dialBelow(ctx context.Context, address string, encrypted bool) (conn net.Conn, err error) {
	if d.NoProxy {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
	} else {
		conn, err = proxy.Dial(ctx, address, encrypted)
	}
	if err != nil || !encrypted {
		return conn, err
	}
	return Coalesce(conn), nil
}

// Connection is a connection that has been upgraded.
type Connection struct {
	// Conn must be passed to [NewSession] unchanged: only a *tls.Conn on a connection of [Coalesce] is written in
	// batches.
	Conn net.Conn
	// Encrypted reports whether the connection uses TLS.
	Encrypted bool
	// Header of the response.
	Header http.Header
}

// Dial connects to a relay at a URL with the scheme wss or ws. The header authenticates. The server must not send
// before it has received data: bytes that arrive with the response to the upgrade are lost.
func (d Dialer) Dial(ctx context.Context, url string, header http.Header) (Connection, error) {
	dialer := websocket.Dialer{
		NetDialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return d.dialBelow(ctx, address, strings.HasPrefix(url, "wss:"))
		},
		TLSClientConfig: d.TLS, HandshakeTimeout: handshakeTimeout, ReadBufferSize: handshakeBuffer,
		WriteBufferSize: handshakeBuffer,
		Subprotocols:    []string{Subprotocol},
	}
	ws, response, err := dialer.DialContext(ctx, url, header)
	if response != nil {
		defer response.Body.Close() //nolint:errcheck // it was read, or is not wanted
	}
	switch {
	case errors.Is(err, websocket.ErrBadHandshake) && response != nil:
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal)) // a part of the text is enough
		wait, _ := time.ParseDuration(response.Header.Get("Retry-After") + "s")
		return Connection{}, &HandshakeError{
			Status: response.StatusCode, Text: strings.TrimSpace(string(text)), RetryAfter: wait,
		}
	case err != nil:
		return Connection{}, fmt.Errorf("connect to the relay at %s: %w", url, err)
	case ws.Subprotocol() != Subprotocol:
		_ = ws.Close()
		return Connection{}, fmt.Errorf("the server at %s is not a relay: it does not have the subprotocol %s", url,
			Subprotocol)
	}
	_, encrypted := ws.NetConn().(*tls.Conn)
	return Connection{Conn: ws.NetConn(), Encrypted: encrypted, Header: response.Header}, nil
}
