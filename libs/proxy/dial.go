package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/proxy"
)

// maxResponseHeader is the longest response of a proxy, in bytes.
const maxResponseHeader = 64 << 10

// Dial connects to host:port over TCP. secure selects HTTPS_PROXY, for servers with TLS, else HTTP_PROXY. The
// environment is read at each call. A proxy has a URL with the scheme http, https or socks5, and may have a user and a
// password. An error names the proxy without them.
func Dial(ctx context.Context, address string, secure bool) (net.Conn, error) {
	target := &url.URL{Scheme: "http", Host: address}
	if secure {
		target.Scheme = "https"
	}
	server, err := httpproxy.FromEnvironment().ProxyFunc()(target)
	if err != nil {
		return nil, fmt.Errorf("proxy of the environment: %w", err)
	}
	var direct net.Dialer
	switch {
	case server == nil:
		return direct.DialContext(ctx, "tcp", address) //nolint:wrapcheck // it names the address
	case server.Scheme == "http" || server.Scheme == "https":
		return connect(ctx, server, address)
	}
	dialer, err := proxy.FromURL(server, &direct)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", server.Redacted(), err)
	}
	through, ok := dialer.(proxy.ContextDialer)
	if !ok {
		return nil, fmt.Errorf("proxy %s: the scheme %s is not supported", server.Redacted(), server.Scheme)
	}
	conn, err := through.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", server.Redacted(), err)
	}
	return conn, nil
}

// connect opens a tunnel with the method CONNECT.
func connect(ctx context.Context, server *url.URL, address string) (net.Conn, error) {
	conn, err := dialProxy(ctx, server)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", server.Redacted(), err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // it fails on a closed connection
	err = request(conn, server, address)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("proxy %s: connect to %s: %w", server.Redacted(), address, err)
	}
	return conn, nil
}

// dialProxy connects to the proxy.
func dialProxy(ctx context.Context, server *url.URL) (net.Conn, error) {
	if server.Scheme == "https" {
		dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12}}
		return dialer.DialContext(ctx, "tcp", withPort(server, "443")) //nolint:wrapcheck // the caller wraps it
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", withPort(server, "80")) //nolint:wrapcheck // the caller wraps it
}

func withPort(server *url.URL, port string) string {
	if server.Port() != "" {
		port = server.Port()
	}
	return net.JoinHostPort(server.Hostname(), port)
}

var errSpokeFirst = errors.New("the server sent data before the client did")

// request sends the request and reads the response.
func request(conn net.Conn, server *url.URL, address string) error {
	r := &http.Request{
		Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{},
	}
	if user := server.User; user != nil {
		password, _ := user.Password()
		credentials := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		r.Header.Set("Proxy-Authorization", "Basic "+credentials)
	}
	if err := r.Write(conn); err != nil {
		return err //nolint:wrapcheck // the caller wraps it
	}
	reader := bufio.NewReader(io.LimitReader(conn, maxResponseHeader))
	response, err := http.ReadResponse(reader, r)
	if err != nil {
		return fmt.Errorf("read the response: %w", err)
	}
	_ = response.Body.Close() // a response to CONNECT has no body
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the proxy responded %s", response.Status)
	}
	if reader.Buffered() > 0 {
		return errSpokeFirst // a client of TLS or HTTP speaks first
	}
	return nil
}
