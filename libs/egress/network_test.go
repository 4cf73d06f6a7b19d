package egress_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/egress"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestPublicAddresses(t *testing.T) {
	t.Parallel()
	for _, a := range []string{"1.1.1.1", "140.82.112.3", "2606:4700::1111", "::ffff:1.1.1.1"} {
		require.True(t, egress.Public(netip.MustParseAddr(a)), a)
	}
	for _, a := range []string{
		"127.0.0.1", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
		"255.255.255.255", "198.18.0.1", "168.63.129.16", "100.100.100.200", "192.0.0.192",
		"::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::127.0.0.1",
		"64:ff9b::7f00:1", "2002:7f00:1::",
		"2001:db8::1", "fec0::1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "3fff::1",
	} {
		require.False(t, egress.Public(netip.MustParseAddr(a)), a)
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
	get := func(network egress.Config, address string) error {
		client := &http.Client{Transport: &http.Transport{DialContext: network.Dialer().DialContext}}
		defer client.CloseIdleConnections()
		response, err := client.Get(address)
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	require.ErrorIs(t, get(egress.Config{}, strings.Replace(inside.URL, "127.0.0.1", "localhost", 1)),
		egress.ErrPrivate)
	require.ErrorIs(t, get(egress.Config{AllowNetworks: []string{"127.0.0.1/32"}}, outside.URL), egress.ErrPrivate)
	require.Zero(t, reached)
	require.NoError(t, get(egress.Config{AllowPrivate: true}, inside.URL))
	require.Len(t, egress.Config{AllowNetworks: []string{"x", "10.0.0.0/8"}}.Validate(), 1)
}
