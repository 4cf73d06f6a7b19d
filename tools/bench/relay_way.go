package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"lockstep.internal/libs/certpool"
)

// way is one of the ways to the target that are compared.
type way struct {
	name string
	// http is who is asked for responses, and stream for streams; path leads from there to the target, and is empty for the target itself.
	http, stream string
	path         string
	// tls is nil for plaintext.
	tls *tls.Config
	// header lines of each request.
	header string
	// kube is the host and path of the Kubernetes API, over TLS; token and caFile are for its clients.
	kube, token, caFile string
}

const (
	// httpName and streamName are the target's names at agents.
	httpName   = "http"
	streamName = "stream"
)

// agentPath leads to an agent at a relay.
func agentPath(agent int64) string { return fmt.Sprintf("/agents/%d", agent) }

// request for a response.
func (w way) request() []byte {
	path := "/x"
	if w.path != "" {
		path = w.path + "/http/" + httpName + path
	}
	return []byte("GET " + path + " HTTP/1.1\r\nHost: " + w.http + "\r\n" + w.header + "\r\n")
}

func (w way) dial(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", w.name, err)
	}
	if w.tls == nil {
		return conn, nil
	}
	secured := tls.Client(conn, w.tls)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", w.name, err), conn.Close())
	}
	return secured, nil
}

// ask connects for responses.
func (w way) ask(ctx context.Context) (net.Conn, error) { return w.dial(ctx, w.http) }

// open a stream to the target.
func (w way) open(ctx context.Context) (net.Conn, error) {
	conn, err := w.dial(ctx, w.stream)
	if err != nil || w.path == "" {
		return conn, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := w.upgrade(conn); err != nil {
		return nil, errors.Join(fmt.Errorf("open a stream through %s: %w", w.name, err), conn.Close())
	}
	return conn, nil
}

// upgrade makes the connection a stream. The target speaks only when it is asked, so nothing comes behind the head of the answer.
func (w way) upgrade(conn net.Conn) error {
	if _, err := conn.Write([]byte("GET " + w.path + "/tcp/" + streamName + " HTTP/1.1\r\nHost: " + w.stream + "\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n" + w.header + "\r\n")); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	reader := bufio.NewReaderSize(conn, 1<<10)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // of an upgrade there is none
	if response.StatusCode != http.StatusSwitchingProtocols || reader.Buffered() > 0 {
		body := new(strings.Builder)
		_ = response.Write(body) // what can be told
		return fmt.Errorf("it was answered: %.500s", body)
	}
	return nil
}

// client of whoever presents a certificate of this authority; nil for plaintext.
func (c certified) client() (*tls.Config, error) {
	if c.CAFile == "" {
		return nil, nil //nolint:nilnil // plaintext is no TLS
	}
	pool, err := certpool.Load(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	return &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}, nil
}
