package service_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/service"
	"lockstep.internal/schemas/gen/errcode"
)

// protocolsWithoutTLS are those that a listener without a certificate speaks.
func protocolsWithoutTLS() map[string]func(*http.Protocols) {
	return map[string]func(*http.Protocols){
		"HTTP/1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	}
}

// readAll is a handler that reads the body and responds with the code of the error, or "ok".
func readAll(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		_, _ = io.WriteString(w, string(fault.CodeOf(err)))
		return
	}
	_, _ = io.WriteString(w, "ok")
}

// post sends a body and returns the response. The body may block.
func post(t *testing.T, client *http.Client, url string, body io.Reader) (string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	require.NoError(t, err)
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

func TestTrickledBodyEndsAtBodyTimeout(t *testing.T) {
	t.Parallel()
	for name, set := range protocolsWithoutTLS() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := service.DefaultListener("127.0.0.1:0")
			cfg.BodyTimeout = 50 * time.Millisecond
			p := start(t, nil, api(cfg, readAll))
			<-p.ready
			body, never := io.Pipe()
			defer never.Close()
			go func() { _, _ = never.Write([]byte("x")) }()
			text, err := post(t, clientFor(t, nil, set), "http://"+p.addrs["api"]+"/", body)
			require.NoError(t, err)
			require.Equal(t, string(errcode.DeadlineExceeded), text)
		})
	}
}

func TestResponseMayLastLongerThanBodyTimeout(t *testing.T) {
	t.Parallel()
	for name, set := range protocolsWithoutTLS() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := service.DefaultListener("127.0.0.1:0")
			cfg.BodyTimeout = 50 * time.Millisecond
			p := start(t, nil, api(cfg, func(w http.ResponseWriter, r *http.Request) {
				read, err := io.ReadAll(r.Body)
				if err != nil || string(read) != "x" {
					w.WriteHeader(http.StatusBadRequest)
				}
				select {
				case <-r.Context().Done():
					panic(http.ErrAbortHandler)
				case <-time.After(3 * cfg.BodyTimeout):
					_, _ = io.WriteString(w, "ok")
				}
			}))
			<-p.ready
			text, err := post(t, clientFor(t, nil, set), "http://"+p.addrs["api"]+"/", strings.NewReader("x"))
			require.NoError(t, err)
			require.Equal(t, "ok", text)
		})
	}
}

// Readers of many bodies at once get resource_exhausted above max_bodies. The bytes are free again afterwards.
func TestBodiesOfConcurrentRequestsAreBounded(t *testing.T) {
	t.Parallel()
	const size = 64 << 10
	for name, encoding := range map[string]string{"plain": "", "compressed": "gzip"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := service.DefaultListener("127.0.0.1:0")
			cfg.MaxBody, cfg.MaxBodies = 64*config.KiB, 256*config.KiB // four bodies
			reading, release := make(chan struct{}), make(chan struct{})
			p := start(t, nil, api(cfg, func(w http.ResponseWriter, r *http.Request) {
				_, err := io.Copy(io.Discard, r.Body)
				if err == nil {
					reading <- struct{}{}
					<-release
				}
				_, _ = io.WriteString(w, string(fault.CodeOf(err)))
			}))
			<-p.ready
			body := make([]byte, size)
			if encoding != "" { // a compressed byte may become a thousand
				body = body[:size/1000]
			}
			send := func() (string, error) {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.addrs["api"]+"/",
					bytes.NewReader(body))
				if err != nil {
					return "", err
				}
				request.Header.Set("Connect-Content-Encoding", encoding)
				response, err := p.client.Do(request)
				if err != nil {
					return "", err
				}
				defer response.Body.Close()
				text, err := io.ReadAll(response.Body)
				return string(text), err
			}
			for range 2 {
				var held errgroup.Group
				for range 4 {
					held.Go(func() error {
						_, err := send()
						return err
					})
				}
				for range 4 {
					<-reading
				}
				text, err := send()
				require.NoError(t, err)
				require.Equal(t, string(errcode.ResourceExhausted), text)
				for range 4 {
					release <- struct{}{}
				}
				require.NoError(t, held.Wait())
			}
			_, metrics := get(t, p.client, "http://"+p.addrs["ops"]+"/metrics", "")
			require.Contains(t, metrics, `lockstep_http_refused_total{listener="api",reason="bodies"} 2`)
		})
	}
}
