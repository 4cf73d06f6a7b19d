package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/gorilla/websocket"

	"lockstep.internal/libs/certpool"
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

// certified are the files of stand-ins that use TLS; empty for plaintext.
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

// listen listens on a free port, with TLS if there is a certificate.
func (c certified) listen() (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", loopback)
	if err != nil || c.CertFile == "" {
		return l, err //nolint:wrapcheck // it names the address
	}
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the certificate: %w", err), l.Close())
	}
	return tls.NewListener(l, &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
	}), nil
}

// server is what serves a listener.
type server struct {
	certified

	serve func(net.Listener) error
}

// serveAll serves by the names of the addresses until ctx is done or one fails.
func serveAll(ctx context.Context, servers map[string]server, ready readyFunc) error {
	addresses, failed := map[string]string{}, make(chan error, len(servers))
	for name, s := range servers {
		l, err := s.listen()
		if err != nil {
			return err
		}
		addresses[name] = l.Addr().String()
		go func() { failed <- s.serve(l) }()
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

// targetConfig configures the target of relays.
type targetConfig struct {
	certified

	Pods int
}

// runTarget serves the target of relays and of direct connections: HTTP, the Kubernetes API, and streams.
func runTarget(ctx context.Context, c targetConfig, ready readyFunc) error {
	api, err := apiServer(c.Pods)
	if err != nil {
		return err
	}
	responses := newHTTPServer(respond())
	streams := func(l net.Listener) error { return serveConnections(l, serveStream) }
	return serveAll(ctx, map[string]server{
		targetHTTP: {certified{}, responses}, targetHTTPS: {c.certified, responses}, targetStream: {certified{}, streams},
		targetStreamTLS: {c.certified, streams}, targetKube: {c.certified, newHTTPServer(api)},
	}, ready)
}

// bulkPath is the path of a response that does not end.
const bulkPath = "/bulk"

func respond() http.Handler {
	body, block := noise(responseSize), noise(blockSize)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(body)
	})
	upgrader := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }} // proxies change the host
	mux.HandleFunc(webSocketPath, func(w http.ResponseWriter, r *http.Request) {
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close() //nolint:errcheck // nothing follows
		for {
			kind, message, err := conn.ReadMessage()
			if err != nil || conn.WriteMessage(kind, message) != nil {
				return
			}
		}
	})
	mux.HandleFunc(bulkPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		for {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	return mux
}

// noise returns n incompressible bytes, always the same.
func noise(n int) []byte {
	out := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(out) // never fails
	return out
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
