package forward

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/route"
)

// forwardedPath returns the path that the target receives.
func forwardedPath(a requestPath, u *url.URL) string {
	copied := *u
	a.strip(&copied)
	return copied.EscapedPath()
}

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]struct {
		agent  int64
		target string
		rest   string
	}{
		"/agents/7/kubernetes":                          {7, "kubernetes", "/"},
		"/agents/7/kubernetes/":                         {7, "kubernetes", "/"},
		"/agents/7/kubernetes/api/v1/pods":              {7, "kubernetes", "/api/v1/pods"},
		"/agents/7/kubernetes/api/v1/pods/a%2Fb":        {7, "kubernetes", "/api/v1/pods/a%2Fb"},
		"/agents/7/kubernetes//api":                     {7, "kubernetes", "//api"},
		"/agents/9223372036854775807/http/shop":         {1<<63 - 1, "shop", "/"},
		"/agents/7/http/shop/a/":                        {7, "shop", "/a/"},
		"/agents/7/http/shop/agents/8/http/db":          {7, "shop", "/agents/8/http/db"},
		"/agents/7/http/shop/a%20b?c":                   {7, "shop", "/a%20b"},
		"/agents/7/http/shop/...":                       {7, "shop", "/..."},
		"/agents/7/http/shop/a%0d%0aHost:%20x":          {7, "shop", "/a%0d%0aHost:%20x"},
		"/agents/7/tcp/db":                              {7, "db", "/"},
		"/agents/7/tcp/db/":                             {7, "db", "/"},
		"/agents/7/http/shop/http://169.254.169.254/me": {7, "shop", "/http://169.254.169.254/me"},
	} {
		u, err := url.ParseRequestURI(path)
		require.NoError(t, err)
		a, err := parse(u, http.Header{})
		require.NoError(t, err, path)
		require.Equal(t, route.Destination{AgentID: want.agent, Target: want.target}, a.Destination, path)
		require.Equal(t, want.rest, forwardedPath(a, u), path)
	}
}

func TestInvalidAddresses(t *testing.T) {
	t.Parallel()
	for path, code := range map[string]errcode.Code{
		"/":                                      errcode.NotFound,
		"/agents/":                               errcode.NotFound,
		"/agents/7":                              errcode.NotFound,
		"/agents/7/":                             errcode.NotFound,
		"/agents/7/Kubernetes/":                  errcode.NotFound,
		"/agents/0/kubernetes/":                  errcode.NotFound,
		"/agents/-7/kubernetes/":                 errcode.NotFound,
		"/agents/+7/kubernetes/":                 errcode.NotFound,
		"/agents/07/kubernetes/":                 errcode.NotFound,
		"/agents/7.0/kubernetes/":                errcode.NotFound,
		"/agents/9223372036854775808/kubernetes": errcode.NotFound,
		"/agents//kubernetes/":                   errcode.NotFound,
		"/7/kubernetes/":                         errcode.NotFound,
		"/agents/7/ssh/shop":                     errcode.NotFound,
		"/agents/7/http":                         errcode.NotFound,
		"/agents/7/http/":                        errcode.NotFound,
		"/agents/7/http//x":                      errcode.NotFound,
		"/agents/7/http/kubernetes/api":          errcode.NotFound, // the Kubernetes API is reachable only with impersonation
		"/agents/7/tcp/kubernetes":               errcode.NotFound,
		"/agents/7/http/10.0.0.1:22/":            errcode.NotFound,
		"/agents/7/http/shop.evil/":              errcode.NotFound,
		"/agents/7/http/Shop/":                   errcode.NotFound,
		"/agents/7/tcp/db/more":                  errcode.NotFound,
		"/agents/7/http/sh%6Fp/":                 errcode.NotFound,
		"/agents%2F7/http/shop/":                 errcode.NotFound,
		"/agents/7%2Fhttp/shop/":                 errcode.NotFound,
		"/agents/7/http/shop%2Fx":                errcode.NotFound, // it would be sent without its first slash
		"/agents/7/kubernetes%2Fapi":             errcode.NotFound,
		"/agents/7/http/shop/../../8/http/db":    errcode.InvalidArgument,
		"/agents/7/http/shop/a/./b":              errcode.InvalidArgument,
		"/agents/7/http/shop/%2e%2e/x":           errcode.InvalidArgument,
		"/agents/7/http/shop/a%2F..%2Fb":         errcode.InvalidArgument,
		"/agents/7/kubernetes/api/v1/..":         errcode.InvalidArgument,
	} {
		u, err := url.ParseRequestURI(path)
		require.NoError(t, err)
		_, err = parse(u, http.Header{})
		require.Equal(t, code, fault.CodeOf(err), path)
	}
}

func TestConnectionHeader(t *testing.T) {
	t.Parallel()
	u := &url.URL{Path: "/agents/7/http/shop/"}
	header := http.Header{"Lockstep-Connection": {"9223372036854775807"}}
	a, err := parse(u, header)
	require.NoError(t, err)
	require.EqualValues(t, 1<<63-1, a.ConnectionID)
	require.Empty(t, header, "the header is not forwarded")
	for _, values := range [][]string{{""}, {"0"}, {"-1"}, {"x"}, {"9223372036854775808"}, {"1", "2"}, {"1", "1"}} {
		_, err := parse(u, http.Header{"Lockstep-Connection": values})
		require.Equal(t, errcode.InvalidArgument, fault.CodeOf(err), values)
	}
}

func FuzzAddress(f *testing.F) {
	for _, path := range []string{
		"/agents/7/kubernetes/api/v1/pods?x=y", "/agents/7/http/shop/%2e%2e/%2F", "/agents/7/tcp/db",
		"/agents/7/http/shop%2F", "http://x/agents/7/http/shop//a", "*", "/agents/7/http/shop/a;b=../c",
	} {
		f.Add(path, "1")
	}
	f.Fuzz(func(t *testing.T, path, connection string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		a, err := parse(u, http.Header{"Lockstep-Connection": {connection}})
		if err != nil {
			return
		}
		require.Positive(t, a.AgentID)
		require.Positive(t, a.ConnectionID)
		require.True(t, route.ValidTarget(a.Target))
		require.True(t, strings.HasPrefix(u.Path, a.prefix))
		rest := forwardedPath(a, u)
		require.Equal(t, byte('/'), rest[0], "a path that is sent begins with a slash")
		require.Equal(t, strings.TrimSuffix(u.EscapedPath(), "/"), strings.TrimSuffix(a.prefix+rest, "/"),
			"prefix and rest are the complete path")
		again, err := url.ParseRequestURI(rest)
		require.NoError(t, err, "the target can read it")
		require.NotContains(t, strings.Split(again.Path, "/"), "..")
		// The prefix alone has the same destination.
		same, err := parse(&url.URL{Path: a.prefix}, http.Header{"Lockstep-Connection": {connection}})
		require.NoError(t, err)
		require.Equal(t, a.Destination, same.Destination)
	})
}
