package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"

	"lockstep.internal/libs/certpool"
)

// route is a route to the target.
type route struct {
	name string
	// http and stream are the addresses for requests and streams. path is the path of the agent at a relay; empty without.
	http, stream, path string
	// kube is the host and path of the Kubernetes API, over TLS; token and caFile are for its clients.
	kube, token, caFile string
	// tls is nil for plaintext.
	tls *tls.Config
}

// Names of the targets of the agent.
const (
	targetNameHTTP   = "http"
	targetNameStream = "stream"
)

// request returns the head of a request.
func (r route) request(path, host, header string) []byte {
	if r.token != "" {
		header += "Authorization: Bearer " + r.token + "\r\n"
	}
	return []byte("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + header + "\r\n")
}

// httpRequest returns a request to the HTTP target.
func (r route) httpRequest() []byte {
	path := "/x"
	if r.path != "" {
		path = r.path + "/http/" + targetNameHTTP + path
	}
	return r.request(path, r.http, "")
}

// dial connects to an address. The connection closes when ctx is done.
func (r route) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", r.name, err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	if r.tls == nil {
		return conn, nil
	}
	secure := tls.Client(conn, r.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", r.name, err), conn.Close())
	}
	return secure, nil
}

// open opens a stream to the target.
func (r route) open(ctx context.Context) (net.Conn, error) {
	conn, err := r.dial(ctx, r.stream)
	if err != nil || r.path == "" {
		return conn, err
	}
	if err := r.upgrade(conn); err != nil {
		return nil, errors.Join(fmt.Errorf("open a stream through %s: %w", r.name, err), conn.Close())
	}
	return conn, nil
}

// upgrade turns the connection into a stream. The target sends nothing first.
func (r route) upgrade(conn net.Conn) error {
	head := r.request(r.path+"/tcp/"+targetNameStream, r.stream, "Connection: Upgrade\r\nUpgrade: tcp\r\n")
	if _, err := conn.Write(head); err != nil {
		return err //nolint:wrapcheck // open wraps it
	}
	response, err := http.ReadResponse(bufio.NewReaderSize(conn, 1<<10), nil)
	if err != nil {
		return err //nolint:wrapcheck // open wraps it
	}
	defer response.Body.Close() //nolint:errcheck // a response to an upgrade has none
	if response.StatusCode != http.StatusSwitchingProtocols {
		return errors.New(response.Status)
	}
	return nil
}

// certified are the files of children that use TLS; empty for plaintext.
type certified struct {
	CertFile, KeyFile, CAFile string
}

// client returns the configuration of a client; nil for plaintext.
func (c certified) client() (*tls.Config, error) {
	if c.CAFile == "" {
		return nil, nil //nolint:nilnil // plaintext
	}
	pool, err := certpool.Load(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of the authority: %w", err)
	}
	return &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}, nil
}

// httpProtocols are those of ALPN for HTTP.
func httpProtocols() []string { return []string{"h2", "http/1.1"} }

// listen listens on a free port, with TLS if there is a certificate. The protocols are those of ALPN.
func (c certified) listen(protocols ...string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", loopback)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if c.CertFile == "" {
		return l, nil
	}
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the certificate: %w", err), l.Close())
	}
	return tls.NewListener(l, &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: protocols,
	}), nil
}
