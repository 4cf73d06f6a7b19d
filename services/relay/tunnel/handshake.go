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
)

const (
	// Subprotocol that both sides name.
	Subprotocol = "tunnel.lockstep.dev.v1"
	// handshakeTimeout bounds connecting, TLS, and the upgrade together.
	handshakeTimeout = 15 * time.Second
	// handshakeBuffer is enough for the lines of an upgrade; nothing else is read through it.
	handshakeBuffer = 4 << 10
	// maxRefusal is how much of a refusal's text is told.
	maxRefusal = 512
)

// Upgrade makes a tunnel's connection of a request, answering with these headers, and has answered the request when it fails. The caller has authenticated it. secret is
// that the connection is encrypted.
func Upgrade(w http.ResponseWriter, r *http.Request, header http.Header) (conn net.Conn, secret bool, err error) {
	if r.Header.Get("Origin") != "" {
		http.Error(w, "a tunnel is nothing for a browser", http.StatusForbidden)
		return nil, false, errors.New("the request has an Origin, as those of browsers have")
	}
	if !strings.Contains(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), Subprotocol) {
		http.Error(w, "a tunnel needs the WebSocket subprotocol "+Subprotocol, http.StatusBadRequest)
		return nil, false, fmt.Errorf("the request does not name the subprotocol %s", Subprotocol)
	}
	upgrader := websocket.Upgrader{HandshakeTimeout: handshakeTimeout, ReadBufferSize: handshakeBuffer, WriteBufferSize: handshakeBuffer, Subprotocols: []string{Subprotocol}}
	ws, err := upgrader.Upgrade(w, r, header)
	if err != nil {
		return nil, false, fmt.Errorf("upgrade to a tunnel: %w", err)
	}
	return ws.NetConn(), r.TLS != nil, nil
}

// RefusedError is how a server answered that did not upgrade.
type RefusedError struct {
	Status int
	Text   string
	// RetryAfter is what the server asked for; 0 for nothing.
	RetryAfter time.Duration
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the relay answered %d %s: %s", e.Status, http.StatusText(e.Status), e.Text)
}

// Dialer makes connections for tunnels, through the proxy that the environment names (HTTPS_PROXY, NO_PROXY).
type Dialer struct {
	// TLS may be nil.
	TLS *tls.Config
	// Direct is that no proxy is used.
	Direct bool
}

// dialGathering is for what is below TLS.
func dialGathering(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what was dialled
	}
	return Gather(conn), nil
}

// Dialled is a connection that has been upgraded.
type Dialled struct {
	// Conn is what a session is made of, as it is: its type says how to write to it.
	Conn net.Conn
	// Secret is that it is encrypted.
	Secret bool
	// Header is what the server said of itself.
	Header http.Header
}

// Dial connects to a relay at a URL of scheme wss or ws, with headers that say who it is. The server must send nothing before it has received something.
func (d Dialer) Dial(ctx context.Context, url string, header http.Header) (Dialled, error) {
	proxy := http.ProxyFromEnvironment
	if d.Direct {
		proxy = nil
	}
	dialer := websocket.Dialer{
		Proxy: proxy, TLSClientConfig: d.TLS, HandshakeTimeout: handshakeTimeout, ReadBufferSize: handshakeBuffer, WriteBufferSize: handshakeBuffer,
		Subprotocols: []string{Subprotocol},
	}
	if strings.HasPrefix(url, "wss:") {
		dialer.NetDialContext = dialGathering
	}
	ws, response, err := dialer.DialContext(ctx, url, header)
	if response != nil {
		defer response.Body.Close() //nolint:errcheck // it was read, or is not wanted
	}
	switch {
	case errors.Is(err, websocket.ErrBadHandshake) && response != nil:
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal)) // what came of it is told in any case
		wait, _ := time.ParseDuration(response.Header.Get("Retry-After") + "s")
		return Dialled{}, &RefusedError{Status: response.StatusCode, Text: strings.TrimSpace(string(text)), RetryAfter: wait}
	case err != nil:
		return Dialled{}, fmt.Errorf("connect to the relay at %s: %w", url, err)
	case ws.Subprotocol() != Subprotocol:
		_ = ws.Close()
		return Dialled{}, fmt.Errorf("what answers at %s is no relay: it does not know the subprotocol %s", url, Subprotocol)
	}
	_, secret := ws.NetConn().(*tls.Conn)
	return Dialled{Conn: ws.NetConn(), Secret: secret, Header: response.Header}, nil
}
