// Package proxytest runs an HTTP proxy that only supports CONNECT, as networks with HTTP egress have.
package proxytest

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Proxy connects to known names only. Its methods are safe for concurrent use.
type Proxy struct {
	// URL of the proxy.
	URL string

	targets map[string]string

	mu            sync.Mutex
	connects      []string
	authorization string
	open          map[net.Conn]struct{}
	copying       sync.WaitGroup
}

// Start runs a proxy until the test ends. targets has the address behind each host:port that clients may connect to.
func Start(tb testing.TB, targets map[string]string) *Proxy {
	tb.Helper()
	p := &Proxy{targets: targets, open: map[net.Conn]struct{}{}}
	server := httptest.NewServer(p)
	p.URL = server.URL
	tb.Cleanup(func() {
		server.Close()
		p.CloseAll()
		p.copying.Wait()
	})
	return p
}

// Connects returns the targets of all successful requests.
func (p *Proxy) Connects() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.connects)
}

// Authorization returns the header Proxy-Authorization of the last request.
func (p *Proxy) Authorization() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.authorization
}

// CloseAll closes the open connections.
func (p *Proxy) CloseAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		_ = conn.Close() // its peer may have closed it
	}
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.authorization = r.Header.Get("Proxy-Authorization")
	target, known := p.targets[r.Host]
	p.mu.Unlock()
	if r.Method != http.MethodConnect || !known {
		http.Error(w, "forbidden", http.StatusForbidden)
		return
	}
	var dialer net.Dialer
	there, err := dialer.DialContext(r.Context(), "tcp", target)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = there.Close() // unused
		return
	}
	p.mu.Lock()
	p.connects = append(p.connects, r.Host)
	p.open[here], p.open[there] = struct{}{}, struct{}{}
	p.mu.Unlock()
	_, err = io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n")
	if err != nil {
		p.close(here, there)
		return
	}
	p.copying.Go(func() {
		_, _ = io.Copy(there, buffered)
		p.close(here, there)
	})
	p.copying.Go(func() {
		_, _ = io.Copy(here, there)
		p.close(here, there)
	})
}

func (p *Proxy) close(connections ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range connections {
		_ = conn.Close() // the other direction may have closed it
		delete(p.open, conn)
	}
}

// Environment sets the proxies of this process until the test ends. The test must not be parallel.
func Environment(t *testing.T, encrypted, none string) {
	t.Helper()
	for name, value := range map[string]string{"HTTPS_PROXY": encrypted, "HTTP_PROXY": "", "NO_PROXY": none} {
		t.Setenv(name, value)
		t.Setenv(strings.ToLower(name), value)
	}
}

// Certificate writes a certificate of *.example.com that is its own authority, and its key. It returns the files.
func Certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, kind string, content []byte) string {
		file := filepath.Join(dir, name)
		encoded := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
		require.NoError(t, os.WriteFile(file, encoded, 0o600))
		return file
	}
	return write("tls.crt", "CERTIFICATE", pair.Certificate[0]), write("tls.key", "PRIVATE KEY", key)
}
