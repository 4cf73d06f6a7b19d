package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// Operations of a stream of the target: its first byte.
const (
	opEcho = 'e' // sends the byte back
	opDown = 'd' // sends blocks until the stream closes
	opUp   = 'u' // confirms each received block with a byte
)

const (
	// responseSize is the size of a response.
	responseSize = 1 << 10
	// blockSize is the size of a block of bulk data.
	blockSize = 256 << 10
)

// Names of the target's addresses.
const (
	targetHTTP      = "http"
	targetHTTPS     = "https"
	targetStream    = "stream"
	targetStreamTLS = "stream-tls"
	targetKube      = "kube" // always over TLS
)

// server is a listener with what serves it.
type server struct {
	net.Listener

	serve func(net.Listener) error
}

// serveAll serves by the names of the addresses until ctx is done or one fails.
func serveAll(ctx context.Context, servers map[string]server, ready readyFunc) error {
	addresses, failed := map[string]string{}, make(chan error, len(servers))
	for name, s := range servers {
		addresses[name] = s.Addr().String()
		go func() { failed <- s.serve(s.Listener) }()
	}
	ready(addresses)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

func newHTTPServer(handler http.Handler) func(net.Listener) error {
	return (&http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}).Serve
}

// runTarget serves the target of relays and of direct connections: HTTP, the Kubernetes API, and streams.
func runTarget(ctx context.Context, c certified, ready readyFunc) error {
	api, err := apiServer()
	if err != nil {
		return err
	}
	plain, errPlain := certified{}.listen()
	secure, errSecure := c.listen()
	stream, errStream := certified{}.listen()
	streamTLS, errStreamTLS := c.listen()
	kube, errKube := c.listen(httpProtocols()...)
	if err := errors.Join(errPlain, errSecure, errStream, errStreamTLS, errKube); err != nil {
		return err
	}
	responses := newHTTPServer(respond())
	return serveAll(ctx, map[string]server{
		targetHTTP: {plain, responses}, targetHTTPS: {secure, responses}, targetStream: {stream, serveStreams},
		targetStreamTLS: {streamTLS, serveStreams}, targetKube: {kube, newHTTPServer(api)},
	}, ready)
}

func respond() http.Handler {
	body := noise(responseSize)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(body)
	})
}

// noise returns n incompressible bytes, always the same.
func noise(n int) []byte {
	out := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(out) // never fails
	return out
}

func serveStreams(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer conn.Close() //nolint:errcheck // nothing follows
			serveStream(conn)
		}()
	}
}

// serveStream serves a stream until it closes.
func serveStream(conn net.Conn) {
	op := make([]byte, 1)
	if _, err := io.ReadFull(conn, op); err != nil {
		return
	}
	if op[0] == opDown {
		writeBlocks(conn)
		return
	}
	block := op
	if op[0] == opUp {
		block = make([]byte, blockSize)
		if _, err := io.ReadFull(conn, block); err != nil {
			return
		}
	}
	for {
		if _, err := conn.Write(op); err != nil {
			return
		}
		if _, err := io.ReadFull(conn, block); err != nil {
			return
		}
	}
}

// writeBlocks writes blocks until the connection closes.
func writeBlocks(conn net.Conn) {
	for block := noise(blockSize); ; {
		if _, err := conn.Write(block); err != nil {
			return
		}
	}
}
