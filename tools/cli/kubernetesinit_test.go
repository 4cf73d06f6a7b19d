package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
)

func TestServersOfTheChartTrustOnlyServers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := natsauth.Init(dir, natsauth.Options{Cell: "east", Cluster: podCluster("ls-nats", "x", 3, "/tls")})
	require.NoError(t, err)
	raw, err := os.ReadFile(natsauth.ConfigFile(dir))
	require.NoError(t, err)
	_, routes, found := strings.Cut(string(raw), "cluster {")
	require.True(t, found)
	routes, _, _ = strings.Cut(routes, "\n}")
	for _, line := range []string{
		"nats://ls-nats-0.ls-nats-internal.x.svc:6222", "nats://ls-nats-2.ls-nats-internal.x.svc:6222",
		`ca_file: "/tls/ca.crt"`, "verify: true",
	} {
		require.Contains(t, routes, line)
	}
}
