package registry_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/devfile"
	"lockstep.internal/services/state/devfile/registry"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// server answers requests of these paths, and counts all.
func server(t *testing.T, handlers map[string]http.HandlerFunc) (url string, requests *atomic.Int64) {
	t.Helper()
	requests = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if handler, found := handlers[r.URL.Path]; found {
			handler(w, r)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, requests
}

func answer(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

func redirect(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }
}

func newClient(t *testing.T, registries ...string) *registry.Client {
	t.Helper()
	c, err := registry.New(registries, nil)
	require.NoError(t, err)
	return c
}

func TestParentsAreFetchedFromConfiguredRegistries(t *testing.T) {
	t.Parallel()
	first, _ := server(t, map[string]http.HandlerFunc{
		"/base/devfiles/nodejs": answer("first"), "/base/devfiles/nodejs/2.2.1": answer("version"),
		"/base/raw/own.yaml": answer("own"), "/base/devfiles/moved": redirect("/base/devfiles/nodejs"),
	})
	second, _ := server(t, map[string]http.HandlerFunc{"/devfiles/nodejs": answer("second")})
	c := newClient(t, first+"/base/", second)
	for want, p := range map[string]devfile.Parent{
		"first":   {ID: "nodejs"},
		"version": {ID: "nodejs", Version: "2.2.1", RegistryURL: first + "/base"},
		"second":  {ID: "nodejs", RegistryURL: second + "/"},
		"own":     {URI: first + "/base/raw/own.yaml"},
	} {
		got, err := c.Fetch(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	got, err := c.Fetch(t.Context(), devfile.Parent{ID: "moved"})
	require.NoError(t, err)
	require.Equal(t, "first", string(got))
	_, err = c.Fetch(t.Context(), devfile.Parent{ID: "missing"})
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.ErrorContains(t, err, "has no devfile missing")
}

// TestNothingElseIsFetched names addresses that a server of the network could have.
func TestNothingElseIsFetched(t *testing.T) {
	t.Parallel()
	victim, requests := server(t, map[string]http.HandlerFunc{"/": answer("metadata"), "/devfiles/a": answer("metadata")})
	host := strings.TrimPrefix(victim, "http://")
	own, _ := server(t, map[string]http.HandlerFunc{
		"/base/devfiles/away": redirect(victim + "/"), "/base/devfiles/up": redirect("/secret"),
		"/base/devfiles/file": redirect("file:///etc/passwd"), "/secret": answer("secret"),
		"/base/devfiles/loop": redirect("/base/devfiles/loop"),
	})
	ownHost := strings.TrimPrefix(own, "http://")
	c := newClient(t, own+"/base")
	for _, p := range []devfile.Parent{
		{ID: "a", RegistryURL: victim},
		{ID: "a", RegistryURL: own},
		{ID: "a", RegistryURL: own + "/base/../"},
		{ID: "a", RegistryURL: own + "/base?x=" + victim},
		{URI: victim + "/"},
		{URI: "http://" + ownHost + "@" + host + "/base/x"},
		{URI: "http://user@" + ownHost + "/base/x"},
		{URI: own + "/secret"},
		{URI: own + "/base"},
		{URI: own + "/base/../secret"},
		{URI: own + "/base/%2e%2e/secret"},
		{URI: own + "/base/..%2fsecret"},
		{URI: own + "/base//secret"},
		{URI: own + "/based/secret"},
		{URI: "https://" + ownHost + "/base/x"},
		{URI: own + ".example/base/x"},
		{URI: "file:///etc/passwd"},
		{URI: "/base/x"},
		{URI: "gopher:" + ownHost},
		{URI: own + "/base/" + strings.Repeat("x", 2000)},
		{URI: ":"},
	} {
		_, err := c.Fetch(t.Context(), p)
		require.True(t, fault.Is(err, errcode.InvalidArgument), "%+v: %v", p, err)
		require.ErrorContains(t, err, "is not of a configured registry; use "+own+"/base")
	}
	for _, id := range []string{"away", "up", "file", "loop"} {
		_, err := c.Fetch(t.Context(), devfile.Parent{ID: id})
		require.True(t, fault.Is(err, errcode.Unavailable), id)
		require.ErrorContains(t, err, "it redirects to an address that is not configured", id)
		require.NotContains(t, fault.From(err).Message, "secret", id)
	}
	require.Zero(t, requests.Load())
	_, err := newClient(t).Fetch(t.Context(), devfile.Parent{URI: victim + "/"})
	require.True(t, fault.Is(err, errcode.FailedPrecondition))
	require.ErrorContains(t, err, "no registry of devfiles is configured")
}

func TestAnswersAreLimited(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	url, _ := server(t, map[string]http.HandlerFunc{
		"/devfiles/endless": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		},
		"/devfiles/silent": func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-stop:
			}
		},
		"/devfiles/failing": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	})
	t.Cleanup(func() { close(stop) })
	c := newClient(t, url)
	data, err := c.Fetch(t.Context(), devfile.Parent{ID: "endless"})
	require.NoError(t, err)
	require.Len(t, data, devfile.MaxSize+1, "the reader of devfiles refuses it")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = c.Fetch(ctx, devfile.Parent{ID: "silent"})
	require.True(t, fault.Is(err, errcode.DeadlineExceeded), "%v", err)
	_, err = c.Fetch(t.Context(), devfile.Parent{ID: "failing"})
	require.True(t, fault.Is(err, errcode.Unavailable))
	require.ErrorContains(t, err, "answers 500")
	_, err = newClient(t, "http://127.0.0.1:1").Fetch(t.Context(), devfile.Parent{ID: "a"})
	require.True(t, fault.Is(err, errcode.Unavailable))
}

func TestRegistriesAreURLs(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "registry.example", "ftp://registry.example", "https://", "https://user:password@registry.example",
		"https://registry.example?a", "https://registry.example#a", "https://registry.example/a/../b",
		"https://registry.example/%2e%2e", "https:registry.example", ":",
	} {
		_, err := registry.New([]string{text}, nil)
		require.ErrorContains(t, err, "is not the URL of a registry", text)
	}
	_, err := registry.New([]string{"https://registry.example", "http://10.0.0.7:8080/devfiles/"}, nil)
	require.NoError(t, err)
}
