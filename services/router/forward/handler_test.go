package forward_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/router/forward"
	"lockstep.internal/services/router/route"
)

// echo answers with what it received.
type echo struct {
	Method string      `json:"method"`
	URI    string      `json:"uri"`
	Host   string      `json:"host"`
	Body   string      `json:"body"`
	Header http.Header `json:"header"`
}

func echoing(t *testing.T) http.HandlerFunc {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.NewEncoder(w).Encode(echo{r.Method, r.RequestURI, r.Host, string(body), r.Header})
		}
		if err != nil {
			t.Errorf("echo: %v", err)
		}
	}
}

func (f *fixture) echoed(r *http.Request) echo {
	f.t.Helper()
	response, body := f.send(r)
	require.Equal(f.t, http.StatusOK, response.StatusCode, body)
	var e echo
	require.NoError(f.t, json.Unmarshal([]byte(body), &e))
	return e
}

func TestRequestReachesTheCellOfItsToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	one := f.addCell("one", echoing(t))
	f.addCell("two", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	token := f.runner("one")
	long := `{"info":"` + strings.Repeat("x", 2*route.MaxBody) + `"}`
	for name, test := range map[string]struct {
		method, path, header, contentType, body string
	}{
		"header":                  {http.MethodPost, "/api/v4/jobs/request", "RUNNER-TOKEN", "application/json", `{"a":1}`},
		"old header":              {http.MethodPut, "/x", "PRIVATE-TOKEN", "application/json", `{"a":1}`},
		"header, other body":      {http.MethodPatch, "/x?%zz;=%2F", "JOB-TOKEN", "text/plain", "log"},
		"header, large body":      {http.MethodPost, "/a%2Fb//c", "RUNNER-TOKEN", "application/json", long},
		"body":                    {http.MethodPost, "/x", "", "application/json", `{"token":"` + token + `"}`},
		"start of a large one":    {http.MethodPost, "/", "", "application/json", `{"token":"` + token + `",` + long[1:]},
		"form":                    {http.MethodDelete, "/x", "", "application/x-www-form-urlencoded", "token=" + token},
		"query":                   {http.MethodDelete, "/x?token=" + token, "", "", ""},
		"JSON without media type": {http.MethodDelete, "/x", "", "", `{"token":"` + token + `"}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := f.request(test.method, test.path, "", strings.NewReader(test.body))
			if test.header != "" {
				r.Header.Set(test.header, token)
			}
			if test.contentType != "" {
				r.Header.Set("Content-Type", test.contentType)
			}
			got := f.echoed(r)
			require.Equal(t, test.method, got.Method)
			require.Equal(t, test.path, got.URI)
			require.Equal(t, test.body, got.Body)
			require.Equal(t, strings.TrimPrefix(one.URL, "http://"), got.Host)
		})
	}
}

// TestTokenInBodyComesBeforeTheUser is about a user who acts on a runner of another cell.
func TestTokenInBodyComesBeforeTheUser(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.addCell("one", text("one"))
	f.addCell("two", text("two"))
	user := "lsp_" + strings.TrimPrefix(f.runner("two"), "glrt-")
	f.cells.legacy = "two" // the checksum of user is wrong: it is an old token
	r := f.request(http.MethodPost, "/api/v4/runners/verify", "", strings.NewReader(`{"token":"`+f.runner("one")+`"}`))
	r.Header.Set(headerPrivate, user)
	r.Header.Set("Content-Type", "application/json")
	_, body := f.send(r)
	require.Equal(t, "one", body)
	r = f.request(http.MethodPost, "/api/v4/user/runners", "", strings.NewReader(`{"runner_type":"x"}`))
	r.Header.Set(headerPrivate, user)
	_, body = f.send(r)
	require.Equal(t, "two", body)
}

func TestClientCannotForgeItsAddress(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.addCell("one", echoing(t))
	r := f.request(http.MethodGet, "/", f.runner("one"), nil)
	for _, name := range []string{
		"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Real-IP",
		"Proxy-Authorization", "Keep-Alive",
	} {
		r.Header.Set(name, "forged")
	}
	r.Header.Set("Connection", "X-Hop")
	r.Header.Set("X-Hop", "1")
	r.Header.Set("X-Kept", "1")
	r.Header.Set("Via", "1.1 other")
	got := f.echoed(r)
	require.Equal(t, []string{"127.0.0.1"}, got.Header["X-Forwarded-For"])
	require.Equal(t, []string{"http"}, got.Header["X-Forwarded-Proto"])
	require.Equal(t, []string{strings.TrimPrefix(f.url, "http://")}, got.Header["X-Forwarded-Host"])
	require.Equal(t, []string{"1.1 other", "1.1 lockstep-router"}, got.Header["Via"])
	require.Equal(t, "1", got.Header.Get("X-Kept"))
	for _, name := range []string{
		"Forwarded", "X-Forwarded-Port", "X-Real-Ip", "Proxy-Authorization", "Keep-Alive", "X-Hop", "Connection",
	} {
		require.NotContains(t, got.Header, name)
	}
}

func TestRedirectKeepsMethodAndBody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	one := f.addCell("one", echoing(t))
	f.cells.set(func(cells map[topology.Cell]cellmap.Cell) {
		cells["one"] = cellmap.Cell{Name: "one", URL: "http://127.0.0.1:1", RedirectURL: one.URL + "/", State: cellmap.Active}
	})
	got := f.echoed(f.request(http.MethodPut, "/api/v4/jobs/1?a=%2F", f.runner("one"), strings.NewReader(`{"a":1}`)))
	require.Equal(t, "/api/v4/jobs/1?a=%2F", got.URI)
	require.Equal(t, http.MethodPut, got.Method)
	require.JSONEq(t, `{"a":1}`, got.Body)
	require.NotContains(t, got.Header, "Via", "the client went to the cell itself")
	f.requireCount("one", "redirected", 1)
}

// TestConnectionsAreReused sends one request after the other, also such that are refused with their body unread.
func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	fromRouter := make(chan string, 5)
	f.addCell("one", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		fromRouter <- r.RemoteAddr
	})
	opened := 0
	trace := &httptrace.ClientTrace{GotConn: func(conn httptrace.GotConnInfo) {
		if !conn.Reused {
			opened++
		}
	}}
	for _, token := range []string{f.runner("one"), "unknown", f.runner("lost")} {
		for range cap(fromRouter) {
			r := f.request(http.MethodPost, "/", token, strings.NewReader(strings.Repeat("x", 4<<10)))
			f.send(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
		}
	}
	require.Equal(t, 1, opened)
	first := <-fromRouter
	for range cap(fromRouter) - 1 {
		require.Equal(t, first, <-fromRouter)
	}
}

func TestCellWithTLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(text("one"))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // refused handshakes
	server.StartTLS()
	defer server.Close()
	authorities := x509.NewCertPool()
	authorities.AddCert(server.Certificate())
	for trusted, expected := range map[*x509.CertPool]int{
		authorities: http.StatusOK, x509.NewCertPool(): http.StatusServiceUnavailable,
	} {
		f := newFixture(t, func(cfg *forward.Config) {
			cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted}
		})
		f.cells.set(func(cells map[topology.Cell]cellmap.Cell) {
			cells["one"] = cellmap.Cell{Name: "one", URL: server.URL, State: cellmap.Active}
		})
		response, body := f.get(f.runner("one"))
		require.Equal(t, expected, response.StatusCode, body)
	}
}

func TestRequestsWithoutACell(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(f *fixture, r *http.Request)
		status  int
		code    string
	}{
		"unknown token": {
			func(_ *fixture, r *http.Request) { r.Header.Set(headerRunner, "old") },
			http.StatusForbidden, "permission_denied",
		},
		"no token": {func(*fixture, *http.Request) {}, http.StatusForbidden, "permission_denied"},
		"unknown token, while the map is not current": {
			func(f *fixture, _ *http.Request) { f.cells.stale = errors.New("no NATS") },
			http.StatusServiceUnavailable, "unavailable",
		},
		"unknown token, while the map is empty": {
			func(f *fixture, _ *http.Request) { clear(f.cells.cells) },
			http.StatusServiceUnavailable, "unavailable",
		},
		"map that was never loaded": {
			func(f *fixture, r *http.Request) {
				f.cells.notReady = true
				r.Header.Set(headerRunner, f.runner("one"))
			},
			http.StatusServiceUnavailable, "unavailable",
		},
		"cell that is not in the map": {
			func(f *fixture, r *http.Request) { r.Header.Set(headerRunner, f.runner("lost")) },
			http.StatusServiceUnavailable, "unavailable",
		},
		"cell in maintenance": {
			func(f *fixture, r *http.Request) {
				f.cells.cells["one"] = cellmap.Cell{Name: "one", URL: "http://one", State: cellmap.Maintenance}
				r.Header.Set(headerRunner, f.runner("one"))
			},
			http.StatusServiceUnavailable, "unavailable",
		},
		"upgrade": {
			func(f *fixture, r *http.Request) {
				r.Header.Set(headerRunner, f.runner("one"))
				r.Header.Set("Connection", "Upgrade")
				r.Header.Set("Upgrade", "websocket")
			},
			http.StatusNotImplemented, "unimplemented",
		},
		"router as its own cell": {
			func(f *fixture, r *http.Request) {
				f.cells.cells["one"] = cellmap.Cell{Name: "one", URL: f.url, State: cellmap.Active}
				r.Header.Set(headerRunner, f.runner("one"))
			},
			http.StatusServiceUnavailable, "unavailable",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, nil)
			f.addCell("one", func(http.ResponseWriter, *http.Request) { t.Error("the cell got a request") })
			r := f.request(http.MethodGet, "/api/v4/jobs/1", "", nil)
			test.prepare(f, r)
			response, body := f.send(r)
			require.Equal(t, test.status, response.StatusCode, body)
			require.Contains(t, body, `"code":"`+test.code+`"`)
			require.Equal(t, "application/json", response.Header.Get("Content-Type"))
			require.Equal(t, test.status == http.StatusServiceUnavailable, response.Header.Get("Retry-After") != "")
			if token := r.Header.Get(headerRunner); token != "" {
				require.NotContains(t, body, token)
			}
		})
	}
}

func TestUnencryptedHTTP2IsNotUpgraded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.addCell("one", echoing(t))
	r := f.request(http.MethodGet, "/", f.runner("one"), nil)
	r.Header.Set("Connection", "Upgrade, HTTP2-Settings")
	r.Header.Set("Upgrade", "h2c")
	r.Header.Set("HTTP2-Settings", "x")
	got := f.echoed(r)
	for _, name := range []string{"Connection", "Upgrade", "Http2-Settings"} {
		require.NotContains(t, got.Header, name)
	}
}

// TestGarbageReachesNoCell sends tokens of every kind that are no tokens.
func TestGarbageReachesNoCell(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(cfg *forward.Config) { cfg.MaxRequestsPerCell = 1 })
	f.addCell("one", text("one"))
	valid := f.runner("one")
	for _, token := range []string{
		"glrt-", "glcbt-", "lsp_", "glcbt-a.b.c", valid[:20], valid + "x", strings.Repeat("x", 4096),
		strings.Replace(valid, ".01.", ".02.", 1),
	} {
		for _, header := range []string{"RUNNER-TOKEN", "JOB-TOKEN", "PRIVATE-TOKEN", "Authorization"} {
			r := f.request(http.MethodPost, "/api/v4/jobs/request", "", strings.NewReader(`{"token":"x"}`))
			r.Header.Set(header, token)
			response, body := f.send(r)
			require.Equal(t, http.StatusForbidden, response.StatusCode, body)
		}
	}
	_, body := f.get(valid)
	require.Equal(t, "one", body)
}

func TestCellWithAnotherAddress(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.addCell("one", text("first"))
	token := f.runner("one")
	_, body := f.get(token)
	require.Equal(t, "first", body)
	f.addCell("one", text("second"))
	_, body = f.get(token)
	require.Equal(t, "second", body)
	f.cells.set(func(cells map[topology.Cell]cellmap.Cell) { delete(cells, "one") })
	response, _ := f.get(token)
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
}
