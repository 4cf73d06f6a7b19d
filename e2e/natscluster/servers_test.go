package natscluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/tools/stack"
)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, 1)) }

// natsServer is one server of the cluster.
type natsServer struct {
	*fixture.NATSServer

	name string
}

// natsServers are three servers, configured as `lockstep nats init --cluster` does.
type natsServers struct {
	dir string
	all []*natsServer
}

func startServers(t *testing.T) *natsServers {
	t.Helper()
	c := &natsServers{dir: filepath.Join(t.TempDir(), "nats")}
	cluster := &natsauth.Cluster{Name: string(stack.Cell)}
	for i := range 3 {
		cluster.Servers = append(cluster.Servers, natsauth.ClusterServer{
			Name: fmt.Sprintf("nats-%d", i), Host: "127.0.0.1", Port: fixture.HoldPort(t),
		})
	}
	_, err := natsauth.Init(c.dir, natsauth.Options{
		Cell: stack.Cell, Cluster: cluster, Principals: []natsauth.StaticPrincipal{natsadmin.Principal()},
	})
	require.NoError(t, err)
	for _, of := range cluster.Servers {
		started := fixture.StartNATSServer(t, filepath.Join(c.dir, of.Name+".conf"), fixture.HoldPort(t))
		c.all = append(c.all, &natsServer{NATSServer: started, name: of.Name})
	}
	return c
}

// url has all servers.
func (c *natsServers) url() string {
	var urls []string
	for _, s := range c.all {
		urls = append(urls, s.URL())
	}
	return strings.Join(urls, ",")
}
