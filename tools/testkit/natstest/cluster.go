package natstest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/tools/testkit/port"
)

// clusterSize is the least number of servers of which one may fail.
const clusterSize = 3

// Cluster is three servers without authentication that hold streams of three replicas.
type Cluster struct {
	servers map[string]*server.Server
}

// StartCluster starts three servers with temporary stores, which stop when the test ends.
func StartCluster(tb testing.TB) *Cluster {
	tb.Helper()
	first, err := port.Hold()
	if err != nil {
		tb.Fatalf("hold a port for the test's NATS cluster: %v", err)
	}
	tb.Cleanup(func() {
		if err := first.Release(); err != nil {
			tb.Errorf("release the port of the test's NATS cluster: %v", err)
		}
	})
	c := &Cluster{servers: map[string]*server.Server{}}
	for i := range clusterSize {
		options := &server.Options{
			ServerName: fmt.Sprintf("nats-%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
			JetStream: true, StoreDir: tb.TempDir(), DisableShortFirstPing: true,
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: server.RANDOM_PORT},
			Routes:  server.RoutesFromStr("nats://" + first.Address()),
		}
		if i == 0 {
			options.Cluster.Port = first.Number()
		}
		started, err := server.NewServer(options)
		if err != nil {
			tb.Fatalf("start a NATS server of the test's cluster: %v", err)
		}
		started.Start()
		c.servers[options.ServerName] = started
		tb.Cleanup(func() { c.Stop(options.ServerName) })
	}
	deadline := time.Now().Add(timeout)
	for !c.complete() {
		if time.Now().After(deadline) {
			tb.Fatal("the servers of the test's NATS cluster do not find each other")
		}
		time.Sleep(reconnectWait)
	}
	return c
}

func (c *Cluster) complete() bool {
	for _, s := range c.servers {
		if s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == clusterSize {
			return true
		}
	}
	return false
}

// Stop stops one server. Further calls do nothing.
func (c *Cluster) Stop(name string) {
	c.servers[name].Shutdown()
	c.servers[name].WaitForShutdown()
}

// Connect connects to any server, the named ones excepted, and closes the connection when the test ends.
func (c *Cluster) Connect(tb testing.TB, except ...string) jetstream.JetStream {
	tb.Helper()
	skip := map[string]bool{}
	for _, name := range except {
		skip[name] = true
	}
	var urls []string
	for name, s := range c.servers {
		if !skip[name] {
			urls = append(urls, s.ClientURL())
		}
	}
	conn, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait),
		nats.Timeout(timeout), nats.IgnoreDiscoveredServers())
	if err != nil {
		tb.Fatalf("connect to the test's NATS cluster: %v", err)
	}
	tb.Cleanup(conn.Close)
	return Open(tb, conn)
}
