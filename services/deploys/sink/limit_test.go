package sink_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/services/deploys/sink/sinktest"
)

func TestLimiterEnforcesAllLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const window = time.Minute
		l := sink.NewLimiter(sink.Limit{
			Count:  20,
			Window: window,
			Burst:  100,
		}).Within(sink.Limit{Count: 30, Window: 2 * window})
		server := sinktest.RateLimiter{Windows: []sinktest.Window{
			{Count: 20, Length: window}, {Count: 30, Length: 2 * window},
		}}
		for range 500 {
			require.NoError(t, l.Wait(t.Context()))
			server.Allow()
		}
		rejected, _ := server.Refused()
		require.Zero(t, rejected)
	})
}

func TestPauseBlocksAllRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pause = 200 * time.Millisecond
		var limiters sink.Limiters
		a, b := limiters.For("x", sink.Limit{Count: 100, Window: time.Second, Burst: 50}), limiters.For("x").Within()
		require.NotSame(t, a, limiters.For("y"))
		start := time.Now()
		b.Pause(pause)
		b.Pause(time.Millisecond) // must not shorten the pause
		require.Equal(t, pause, a.Paused())
		require.NoError(t, a.Await(t.Context()))
		require.NoError(t, a.Wait(t.Context()))
		require.Equal(t, pause, time.Since(start))

		a.Pause(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, a.Wait(ctx), context.Canceled)
		require.ErrorIs(t, b.Await(ctx), context.Canceled)
	})
}

func TestAwaitDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := sink.NewLimiter(sink.Limit{Count: 1, Window: time.Hour})
		for range 10 {
			require.NoError(t, l.Await(t.Context()))
		}
		require.NoError(t, l.Wait(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.Error(t, l.Await(ctx))
	})
}

func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	for _, a := range []string{"1.1.1.1", "140.82.112.3", "2606:4700::1111", "::ffff:1.1.1.1"} {
		require.True(t, sink.Public(netip.MustParseAddr(a)), a)
	}
	for _, a := range []string{
		"127.0.0.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
		"255.255.255.255", "198.18.0.1",
		"::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::127.0.0.1",
		"64:ff9b::7f00:1", "2002:7f00:1::",
		"2001:db8::1", "fec0::1",
	} {
		require.False(t, sink.Public(netip.MustParseAddr(a)), a)
	}
}

// A public name or a redirect may lead to a private address, so the dialed address is checked.
func TestAddressIsCheckedAfterResolutionAndRedirects(t *testing.T) {
	t.Parallel()
	reached := 0
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	t.Cleanup(inside.Close)
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.Replace(inside.URL, "127.0.0.1", "127.0.0.2", 1), http.StatusTemporaryRedirect)
	}))
	t.Cleanup(outside.Close)
	get := func(network sink.NetworkConfig, address string) error {
		client := sink.NewClient(sink.ClientOptions{Limiter: sink.NewLimiter(), Network: network})
		defer client.CloseIdleConnections()
		response, err := client.Get(address)
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	require.ErrorIs(t, get(sink.NetworkConfig{}, strings.Replace(inside.URL, "127.0.0.1", "localhost", 1)),
		sink.ErrPrivate)
	require.ErrorIs(t, get(sink.NetworkConfig{AllowNetworks: []string{"127.0.0.1/32"}}, outside.URL), sink.ErrPrivate)
	require.Zero(t, reached)
	require.NoError(t, get(sink.NetworkConfig{AllowPrivate: true}, inside.URL))
	require.Len(t, sink.NetworkConfig{AllowNetworks: []string{"x", "10.0.0.0/8"}}.Validate(), 1)
}

func TestRetryAfterIsParsedInBothForms(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"7":                             7 * time.Second,
		"0":                             0,
		"99999999":                      time.Hour,
		"Fri, 01 May 2026 10:00:30 GMT": 30 * time.Second,
		"Fri, 01 May 2026 09:00:30 GMT": 0,
	} {
		got, ok := sink.ParseRetryAfter(http.Header{"Retry-After": {text}}, now)
		require.True(t, ok, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "soon", "-1"} {
		_, ok := sink.ParseRetryAfter(http.Header{"Retry-After": {text}}, now)
		require.False(t, ok, text)
	}
}
