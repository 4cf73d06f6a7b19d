package dial

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/libs/proxy"
	"lockstep.internal/services/gateway/access"
)

const (
	// defaultTunnelTimeout applies to a context without a deadline.
	defaultTunnelTimeout = 15 * time.Second
	// maxRefusal is how much is read of the reason of a refusal, in bytes.
	maxRefusal = 4 << 10
)

// Tunnel connects to workspaces through a relay and the relay agent of their cluster.
type Tunnel struct {
	relay *url.URL
	tls   *tls.Config // nil for http
	token func() (string, error)
}

// NewTunnel returns a tunnel through the relay at a URL with the scheme https or http, with the trusted CAs, nil for
// those of the system. token is called for each connection.
func NewTunnel(relay string, pool *x509.CertPool, token func() (string, error)) (*Tunnel, error) {
	u, err := url.Parse(relay)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a relay such as https://relay.example", relay)
	}
	u.Path = "/" + strings.TrimPrefix(u.Path, "/") // JoinPath keeps an empty path relative
	t := &Tunnel{relay: u, token: token}
	if u.Scheme == "https" {
		t.tls = &tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: u.Hostname(),
			ClientSessionCache: tls.NewLRUClientSessionCache(0),
		}
	}
	return t, nil
}

// Dial implements [Network].
func (t *Tunnel) Dial(ctx context.Context, e access.Entry, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, defaultTunnelTimeout)
	defer cancel()
	token, err := t.token()
	if err != nil {
		return nil, fmt.Errorf("relay.token_file: %w", err)
	}
	conn, err := t.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the relay: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // the exchange reports it
	joined, err := upgrade(ctx, conn, t.request(ctx, e, port, token))
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("connect through the relay to agent %d: %w", e.AgentID, err)
	}
	return joined, nil
}

func (t *Tunnel) connect(ctx context.Context) (net.Conn, error) {
	port := t.relay.Port()
	if port == "" {
		port = t.relay.Scheme // a name of a service, as in /etc/services
	}
	conn, err := proxy.Dial(ctx, net.JoinHostPort(t.relay.Hostname(), port), t.tls != nil)
	if err != nil || t.tls == nil {
		return conn, err
	}
	secured := tls.Client(conn, t.tls)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return secured, nil
}

// request asks for a stream to the Service of the workspace. The relay waits for an agent that is not connected, as
// long as the gateway does.
func (t *Tunnel) request(ctx context.Context, e access.Entry, port int, token string) *http.Request {
	target := e.Name + "." + e.Namespace + ":" + strconv.Itoa(port)
	header := http.Header{
		"Authorization": {"Bearer " + token}, "Connection": {"Upgrade"}, "Upgrade": {"tcp"},
	}
	if deadline, has := ctx.Deadline(); has {
		seconds := strconv.FormatFloat(max(time.Until(deadline), 0).Seconds(), 'f', 1, 64)
		header.Set("Prefer", "wait="+seconds)
	}
	return &http.Request{
		Method: http.MethodGet, Host: t.relay.Host, Header: header,
		URL: t.relay.JoinPath("agents", strconv.FormatInt(e.AgentID, 10), "tcp", target),
	}
}

// upgrade sends the request, and returns the connection after the relay has joined it with the workspace.
func upgrade(ctx context.Context, conn net.Conn, request *http.Request) (net.Conn, error) {
	if err := request.Write(conn); err != nil {
		return nil, fmt.Errorf("send the request: %w", err)
	}
	buffered := bufio.NewReader(conn)
	response, err := http.ReadResponse(buffered, request.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("read the response: %w", err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal)) // a part of it is enough
		_ = response.Body.Close()                                          // the connection is closed
		return nil, fmt.Errorf("it responded %s: %s", response.Status, strings.TrimSpace(string(reason)))
	}
	if buffered.Buffered() == 0 {
		return conn, nil
	}
	return &readConn{conn, buffered}, nil
}

// readConn is a connection of which some bytes are buffered.
type readConn struct {
	net.Conn

	buffered *bufio.Reader
}

// Read implements [net.Conn].
func (c *readConn) Read(p []byte) (int, error) {
	if c.buffered.Buffered() > 0 {
		return c.buffered.Read(p) //nolint:wrapcheck // from memory
	}
	return c.Conn.Read(p) //nolint:wrapcheck // the connection's own
}
