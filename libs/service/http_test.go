package service_test

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/internal/testcert"
	"lockstep.internal/libs/service"
)

func api(cfg service.Listener, handler http.HandlerFunc) service.Part {
	return service.HTTPServer("api", cfg, handler, service.HTTPOptions{Logger: slog.New(slog.DiscardHandler)})
}

// clientFor speaks this protocol only.
func clientFor(t *testing.T, secure *tls.Config, set func(*http.Protocols)) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	set(protocols)
	transport := &http.Transport{Protocols: protocols, TLSClientConfig: secure}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestListenerServesHTTP1AndHTTP2WithoutTLS(t *testing.T) {
	t.Parallel()
	p := start(t, nil, api(service.DefaultListener("127.0.0.1:0"), func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	<-p.ready
	for want, set := range map[string]func(*http.Protocols){
		"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2.0": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		_, body := get(t, clientFor(t, nil, set), "http://"+p.addrs["api"]+"/", "")
		require.Equal(t, want, body)
	}
}

func TestListenerServesTLSAndReloadsItsCertificate(t *testing.T) {
	t.Parallel()
	authority, folder := testcert.New(t), t.TempDir()
	cfg := service.DefaultListener("127.0.0.1:0")
	cfg.TLS.CertFile, cfg.TLS.KeyFile = authority.Issue(t, folder, "first")
	cfg.TLS.ClientCAFile = authority.CAFile
	p := start(t, nil, api(cfg, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	<-p.ready
	certFile, keyFile := authority.Issue(t, t.TempDir(), "client")
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	require.NoError(t, err)
	trusting := &tls.Config{RootCAs: authority.Pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	http2 := func(p *http.Protocols) { p.SetHTTP2(true) }
	name := func() string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.addrs["api"]+"/", http.NoBody)
		require.NoError(t, err)
		response, err := clientFor(t, trusting, http2).Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		require.Equal(t, "HTTP/2.0", response.Proto)
		return response.TLS.PeerCertificates[0].Subject.CommonName
	}
	require.Equal(t, "first", name())

	// During a rotation certificate and key do not match: the old pair stays in use.
	key, err := os.ReadFile(cfg.TLS.KeyFile)
	require.NoError(t, err)
	authority.Issue(t, folder, "second")
	second, err := os.ReadFile(cfg.TLS.KeyFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cfg.TLS.KeyFile, key, 0o600))
	require.NoError(t, os.Chtimes(cfg.TLS.KeyFile, time.Now(), time.Now().Add(time.Minute)))
	require.Equal(t, "first", name())
	require.NoError(t, os.WriteFile(cfg.TLS.KeyFile, second, 0o600))
	require.NoError(t, os.Chtimes(cfg.TLS.KeyFile, time.Now(), time.Now().Add(2*time.Minute)))
	require.Equal(t, "second", name())

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.addrs["api"]+"/", http.NoBody)
	require.NoError(t, err)
	_, err = clientFor(t, &tls.Config{RootCAs: authority.Pool, MinVersion: tls.VersionTLS12}, http2).Do(request)
	require.Error(t, err, "a client without a certificate is refused")
}

func TestListenerLimits(t *testing.T) {
	t.Parallel()
	cfg := service.DefaultListener("127.0.0.1:0")
	cfg.MaxBody, cfg.MaxHeader = 10, config.KiB
	p := start(t, nil, api(cfg, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	}))
	<-p.ready
	client := newClient(t)
	for _, tc := range []struct {
		body, header string
		status       int
	}{{"0123456789", "", 200}, {"0123456789x", "", 413}, {"", strings.Repeat("x", 8<<10), 431}} {
		request, err := http.NewRequestWithContext(
			t.Context(),
			http.MethodPost,
			"http://"+p.addrs["api"]+"/",
			strings.NewReader(tc.body),
		)
		require.NoError(t, err)
		request.Header.Set("X-Long", tc.header)
		response, err := client.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, tc.status, response.StatusCode)
	}
}

// A client that is refused, and never sends the body that it announced, does not keep its
// connection.
func TestUnreadBodyDoesNotBlock(t *testing.T) {
	t.Parallel()
	refuse := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }
	options := service.HTTPOptions{Logger: slog.New(slog.DiscardHandler), UnreadBodyTimeout: time.Millisecond}
	p := start(
		t, nil, service.HTTPServer("api", service.DefaultListener("127.0.0.1:0"), http.HandlerFunc(refuse), options),
	)
	<-p.ready
	for _, body := range []string{"Content-Length: 100\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n5\r\nab"} {
		conn, err := net.Dial("tcp", p.addrs["api"])
		require.NoError(t, err)
		_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: api\r\n"+body)
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Contains(t, string(answer), "401", body)
		require.NoError(t, conn.Close())
	}
}

func TestDrainEndsStreams(t *testing.T) {
	t.Parallel()
	entered, deaf := make(chan struct{}), make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		entered <- struct{}{}
		if r.URL.Path == "/deaf" {
			<-r.Context().Done()
			close(deaf)
			return
		}
		<-service.Draining(r.Context())
		_, _ = io.WriteString(w, "come again")
	}
	open := func(p *process, client *http.Client, path string) io.ReadCloser {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.addrs["api"]+path, http.NoBody)
		require.NoError(t, err)
		response, err := client.Do(request)
		require.NoError(t, err)
		<-entered
		return response.Body
	}
	for name, set := range map[string]func(*http.Protocols){
		"HTTP/1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"h2c":    func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		p := start(t, nil, api(service.DefaultListener("127.0.0.1:0"), handler))
		<-p.ready
		body := open(p, clientFor(t, nil, set), "/listening")
		p.cancel()
		said, err := io.ReadAll(body)
		require.NoError(t, err, name)
		require.Equal(t, "come again", string(said), name)
		require.NoError(t, body.Close())
		require.NoError(t, <-p.ended, name)
	}

	p := start(
		t, func(cfg *service.Config) { cfg.DrainTimeout = 20 * time.Millisecond },
		api(service.DefaultListener("127.0.0.1:0"), handler),
	)
	<-p.ready
	body := open(p, newClient(t), "/deaf")
	p.cancel()
	_, err := io.ReadAll(body)
	require.Error(t, err)
	require.NoError(t, body.Close())
	require.ErrorContains(t, <-p.ended, "api")
	<-deaf
	require.Nil(t, service.Draining(t.Context()), "outside of a server nothing drains")
}

func TestValidateConfig(t *testing.T) {
	t.Parallel()
	authority := testcert.New(t)
	certFile, keyFile := authority.Issue(t, t.TempDir(), "x")
	otherCert, _ := authority.Issue(t, t.TempDir(), "y")
	for name, tc := range map[string]struct {
		change func(*service.Config)
		want   []string
	}{
		"default": {func(*service.Config) {}, nil},
		"TLS": {func(c *service.Config) {
			c.Ops.TLS = service.TLS{CertFile: certFile, KeyFile: keyFile, ClientCAFile: authority.CAFile}
		}, nil},
		"many": {func(c *service.Config) {
			*c = service.Config{}
		}, []string{
			"drain_timeout", "ops.listen", "ops.read_header_timeout", "ops.idle_timeout", "ops.max_header",
			"ops.max_concurrent_streams", "ops.max_http_connections", "ops.max_http_connections_per_host",
			"ops.max_connects_per_host", "ops.max_http_requests (", "ops.max_http_requests_per_host", "ops.write_timeout",
		}},
		"half": {
			func(c *service.Config) { c.Ops.TLS.CertFile = certFile }, []string{"ops.tls: set cert_file and key_file together"},
		},
		"mismatch": {func(c *service.Config) {
			c.Ops.TLS = service.TLS{CertFile: otherCert, KeyFile: keyFile}
		}, []string{"ops.tls: cannot load the certificate"}},
		"CA alone": {func(c *service.Config) {
			c.Ops.TLS.ClientCAFile = authority.CAFile
		}, []string{"ops.tls.client_ca_file (LOCKSTEP_OPS_TLS_CLIENT_CA_FILE"}},
		"no CA": {func(c *service.Config) {
			c.Ops.TLS = service.TLS{CertFile: certFile, KeyFile: keyFile, ClientCAFile: "/no"}
		}, []string{"client_ca_file: read CA certificates"}},
		"CA is key": {func(c *service.Config) {
			c.Ops.TLS = service.TLS{CertFile: certFile, KeyFile: keyFile, ClientCAFile: keyFile}
		}, []string{"contains no certificate"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := service.DefaultConfig("127.0.0.1:0")
			tc.change(&cfg)
			binding, err := config.Bind(&cfg, "")
			require.NoError(t, err)
			err = binding.Validate()
			if tc.want == nil {
				require.NoError(t, err)
				return
			}
			var problems config.Problems
			require.ErrorAs(t, err, &problems)
			require.Len(t, problems, len(tc.want), err.Error())
			for _, want := range tc.want {
				require.Contains(t, err.Error(), want)
			}
		})
	}
}

func TestListenersShareOneMetricsRegistry(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	options := service.HTTPOptions{Logger: slog.New(slog.DiscardHandler), Metrics: registry}
	p := start(t, nil, service.HTTPServer("one", service.DefaultListener("127.0.0.1:0"), http.NotFoundHandler(), options),
		service.HTTPServer("two", service.DefaultListener("127.0.0.1:0"), http.NotFoundHandler(), options))
	<-p.ready
	for _, name := range []string{"one", "two"} {
		code, _ := get(t, p.client, "http://"+p.addrs[name]+"/", "")
		require.Equal(t, 404, code)
	}
	_, err := registry.Gather()
	require.NoError(t, err)
}

func TestConnectionsAboveTheMaximumAreClosed(t *testing.T) {
	t.Parallel()
	cfg := service.DefaultListener("127.0.0.1:0")
	cfg.MaxHTTPConnections = 2
	p := start(t, nil, api(cfg, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	<-p.ready
	// open returns a connection that was used, or nil if it was refused.
	open := func() net.Conn {
		conn, err := net.Dial("tcp", p.addrs["api"])
		require.NoError(t, err)
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: api\r\n\r\n")
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		if err == nil {
			return conn
		}
		require.NoError(t, conn.Close())
		return nil
	}
	first, second := open(), open()
	require.NotNil(t, first)
	require.NotNil(t, second)
	require.Nil(t, open())
	require.NoError(t, first.Close())
	var third net.Conn
	require.Eventually(t, func() bool { third = open(); return third != nil }, time.Minute, time.Millisecond)
	require.NoError(t, third.Close())
	require.NoError(t, second.Close())
}
