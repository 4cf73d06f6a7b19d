package targets_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/relay/agent/targets"
)

func TestAllows(t *testing.T) {
	t.Parallel()
	services := []string{"*.*.svc:*", "*.*.svc.cluster.local:*"}
	workspaces := agent.DefaultConfig().Targets.AllowedAddresses
	for name, c := range map[string]struct {
		patterns []string
		address  string
		want     bool
	}{
		"a service":                                  {services, "shop.apps.svc:80", true},
		"a service by its full name":                 {services, "shop.apps.svc.cluster.local:80", true},
		"a service of a workspace, by default":       {workspaces, "shop.ws-7.svc:80", true},
		"by its full name, by default":               {workspaces, "shop.ws-7.svc.cluster.local:80", true},
		"the API server, by default":                 {workspaces, "kubernetes.default.svc:443", false},
		"a service of the cluster, by default":       {workspaces, "kube-dns.kube-system.svc.cluster.local:9153", false},
		"the agent's own service, by default":        {workspaces, "watcher.lockstep-agent-1.svc:8081", false},
		"a name in another domain, by default":       {workspaces, "shop.ws-7.svc.example:80", false},
		"a service named as a workspace, by default": {workspaces, "ws-7.kube-system.svc:80", false},
		"a label named as a workspace, by default":   {workspaces, "x.ws-7.kube-system.svc:80", false},
		"a pod's name, by default":                   {workspaces, "web-0.shop.ws-7.svc:80", false},
		"one label":                                  {[]string{"*.svc:*"}, "shop.svc:80", true},
		"two labels":                                 {[]string{"*.svc:*"}, "shop.apps.svc:80", false},
		"a part of an IP address":                    {[]string{"10.0.0.*:80"}, "10.0.0.7:80", true},
		"more than a part of an IP address":          {[]string{"10.*:80"}, "10.0.0.7:80", false},
		"every host at one port":                     {[]string{"*:443"}, "shop.apps.svc:443", true},
		"trailing dot":                               {services, "shop.apps.svc.cluster.local.:80", true},
		"upper case":                                 {services, "Shop.Apps.SVC:80", true},
		"similar prefix":                             {services, "shop.apps.svc.example:80", false},
		"similar suffix":                             {services, "shopsvc:80", false},
		"no subdomain":                               {services, "svc:80", false},
		"an address":                                 {services, "169.254.169.254:80", false},
		"localhost":                                  {services, "localhost:80", false},
		"nothing is allowed":                         {nil, "shop.apps.svc:80", false},
		"everything allowed":                         {[]string{"*:*"}, "[::1]:22", true},
		"one port":                                   {[]string{"*.*.svc:443"}, "shop.apps.svc:443", true},
		"another port":                               {[]string{"*.*.svc:443"}, "shop.apps.svc:80", false},
		"one address":                                {[]string{"10.0.0.1:5432"}, "10.0.0.1:5432", true},
		"IPv4-mapped IPv6":                           {[]string{"10.0.0.1:5432"}, "[::ffff:10.0.0.1]:5432", true},
		"IPv6 address in another notation":           {[]string{"[2001:DB8::0:1]:80"}, "[2001:db8::1]:80", true},
		"another address":                            {[]string{"10.0.0.1:5432"}, "10.0.0.10:5432", false},
		"parts in between":                           {[]string{"a*b*c:1"}, "a1b2b3c:1", true},
		"parts in the wrong order":                   {[]string{"a*b*c:1"}, "acb:1", false},
		"overlapping parts":                          {[]string{"ab*ba:1"}, "aba:1", false},
		"dot is literal":                             {[]string{"*.*.svc:*"}, "shop.appsxsvc:80", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			allowed, err := targets.ParseAllowed(c.patterns, "ws-")
			require.NoError(t, err)
			address, err := targets.ParseAddress(c.address)
			require.NoError(t, err)
			require.Equal(t, c.want, allowed.Allows(address))
		})
	}
}

func TestDefaultAllowsServicesInNamespacesWithThePrefix(t *testing.T) {
	t.Parallel()
	allowed, err := targets.ParseAllowed(agent.DefaultConfig().Targets.AllowedAddresses, "dev-")
	require.NoError(t, err)
	for text, want := range map[string]bool{"shop.dev-7-ide.svc:80": true, "shop.ws-7-ide.svc:80": false} {
		address, err := targets.ParseAddress(text)
		require.NoError(t, err)
		require.Equal(t, want, allowed.Allows(address), text)
	}
}

func TestInvalidPatterns(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{
		"", "*", "*.svc", ":80", "*.svc:http", "*.svc:0", "*.svc:65536", "http://x:80", "a b:80", "a,b:80", "[a:80",
	} {
		_, err := targets.ParseAllowed([]string{"*.svc:*", pattern}, "ws-")
		require.ErrorContains(t, err, `"`+pattern+`"`)
	}
}

func TestInvalidAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"", "shop", "shop:", ":80", "shop:http", "shop:0", "shop:65536", "a b:80", "-shop:80", "shop..svc:80",
		"fe80::1%eth0:80", "[fe80::1%eth0]:80", strings.Repeat("a.", 127) + "a:80", "*:80",
	} {
		_, err := targets.ParseAddress(address)
		require.Error(t, err, address)
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("shop.apps.svc:80", "*.svc:*")
	f.Add("[::1]:1", "[::1]:1")
	f.Add("a1b2b3c:1", "a*b*c:1")
	f.Fuzz(func(t *testing.T, text, pattern string) {
		address, err := targets.ParseAddress(text)
		if err != nil {
			return
		}
		parsed, err := targets.ParseAddress(address.String())
		require.NoError(t, err)
		require.Equal(t, address, parsed)
		own, err := targets.ParseAllowed([]string{address.String()}, "ws-")
		require.NoError(t, err)
		require.True(t, own.Allows(address), "an address is a pattern of itself")
		allowed, err := targets.ParseAllowed([]string{pattern}, "ws-")
		if err == nil && !strings.Contains(pattern, "*") && allowed.Allows(address) {
			same, err := targets.ParseAddress(pattern)
			require.NoError(t, err)
			require.Equal(t, address, same, "a pattern without * is one address")
		}
	})
}
