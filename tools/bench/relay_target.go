package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"time"
)

// What the target of relayed streams is asked, one byte each; opSend and opTake are followed by how many bytes, in eight.
const (
	opEcho = 'e' // answered by the same byte
	opSend = 's' // answered by as many bytes
	opTake = 't' // followed by as many bytes, answered by opTake when all have come
)

const (
	// responseSize is that of a response of the HTTP figures.
	responseSize = 1 << 10
	// bulkBuffer is how much bulk is written or read at once.
	bulkBuffer = 256 << 10
)

// Names of the target's addresses.
const (
	targetHTTP       = "http"
	targetHTTPS      = "https"
	targetStream     = "stream"
	targetStreamsTLS = "stream-tls"
	targetKube       = "kube" // always over TLS
)

// certified is what children that speak TLS are started with; empty for plaintext.
type certified struct {
	CertFile, KeyFile, CAFile string
}

// listen listens on an address, with TLS where there is a certificate. The protocols are those of ALPN.
func (c certified) listen(address string, protocols ...string) (net.Listener, error) {
	var listening net.ListenConfig
	l, err := listening.Listen(context.Background(), "tcp", address)
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
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: protocols}), nil
}

// httpProtocols are those of ALPN for HTTP.
var httpProtocols = []string{"h2", "http/1.1"}

// loopback is any free port that nobody else reaches.
const loopback = "127.0.0.1:0"

// serveTarget is what relays and agents lead to, and what is reached directly: HTTP, and streams that carry bulk.
func serveTarget(c certified, signals <-chan os.Signal, ready func(map[string]string)) error {
	addrs := map[string]string{}
	failed := make(chan error, 5)
	server := &http.Server{Handler: respond(), ReadHeaderTimeout: time.Minute}
	api, err := apiServer()
	if err != nil {
		return err
	}
	kube := &http.Server{Handler: api, ReadHeaderTimeout: time.Minute}
	for name, serve := range map[string]func(net.Listener) error{
		targetHTTP: server.Serve, targetHTTPS: server.Serve, targetStream: serveStreams, targetStreamsTLS: serveStreams,
		targetKube: kube.Serve,
	} {
		secured := c
		if name == targetHTTP || name == targetStream {
			secured = certified{}
		}
		var protocols []string
		if name == targetKube {
			protocols = httpProtocols
		}
		l, err := secured.listen(loopback, protocols...)
		if err != nil {
			return err
		}
		addrs[name] = l.Addr().String()
		go func() { failed <- serve(l) }()
	}
	ready(addrs)
	select {
	case err := <-failed:
		return err
	case <-signals:
		return nil
	}
}

func respond() http.Handler {
	body := noise(responseSize)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(body)
	})
}

// noise is n bytes that nothing compresses.
func noise(n int) []byte {
	out := make([]byte, n)
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(out) // never fails
	return out
}

func serveStreams(l net.Listener) error {
	payload := noise(bulkBuffer)
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer conn.Close() //nolint:errcheck // it is over
			for obey(conn, payload) == nil {
				continue
			}
		}()
	}
}

// obey does one thing that is asked. While nothing is, a stream holds no more than its goroutine.
func obey(conn net.Conn, payload []byte) error {
	var op [1]byte
	if _, err := io.ReadFull(conn, op[:]); err != nil {
		return err //nolint:wrapcheck // told to nobody
	}
	switch op[0] {
	case opSend:
		n, err := readCount(conn)
		if err != nil {
			return err
		}
		return writeBulk(conn, payload, n)
	case opTake:
		n, err := readCount(conn)
		if err != nil {
			return err
		}
		if err := readBulk(conn, n); err != nil {
			return err
		}
	}
	_, err := conn.Write(op[:])
	return err //nolint:wrapcheck // told to nobody
}

func readCount(from io.Reader) (int64, error) {
	var raw [8]byte
	if _, err := io.ReadFull(from, raw[:]); err != nil {
		return 0, fmt.Errorf("read how many bytes follow: %w", err)
	}
	return int64(binary.BigEndian.Uint64(raw[:])), nil
}

// request of n bytes.
func bulkRequest(op byte, n int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{op}, uint64(n))
}

func writeBulk(to io.Writer, payload []byte, n int64) error {
	for n > 0 {
		written, err := to.Write(payload[:min(n, int64(len(payload)))])
		if err != nil {
			return fmt.Errorf("write bulk: %w", err)
		}
		n -= int64(written)
	}
	return nil
}

func readBulk(from io.Reader, n int64) error {
	buffer := make([]byte, bulkBuffer)
	for n > 0 {
		read, err := from.Read(buffer[:min(n, bulkBuffer)])
		n -= int64(read)
		if err != nil && n > 0 {
			return fmt.Errorf("read bulk, %d bytes before its end: %w", n, err)
		}
	}
	return nil
}

// hijacked takes a request's connection over for the bytes after it.
func hijacked(w http.ResponseWriter) (net.Conn, *bufio.Reader, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, fmt.Errorf("take the connection over: %w", err)
	}
	return conn, buffered.Reader, nil
}
