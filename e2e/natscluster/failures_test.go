package natscluster_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state"
	"lockstep.internal/services/watcher"
	"lockstep.internal/tools/stack"
)

const (
	// interval between two new workspaces while a server is down.
	interval = 1200 * time.Millisecond
	// count of the workspaces that are created while a server is down. Kubernetes has room for 60 in all.
	count = 9
)

// TestEachNATSServerMayFail kills each of three servers under a load of new workspaces. The server stays down until all
// of them are Running, and until a rollout was reported.
func TestEachNATSServerMayFail(t *testing.T) {
	servers := startServers(t)
	s := fixture.StartWith(t, stack.Options{
		NATSURL: servers.url(), NATSDir: servers.dir, Workloads: watcher.Workloads{Enabled: true},
		Configure: func(_ string, config any) {
			if cfg, is := config.(*state.Config); is {
				cfg.Streams.Replicas, cfg.Streams.Storage = 3, 512<<20
			}
		},
	})
	load := &load{s: s}
	load.run(t, 1)
	for _, failing := range servers.all {
		awaitServers(t, s, complete)
		failing.Kill()
		killed := time.Now()
		elected := make(chan time.Time, 1)
		go func() {
			awaitServers(t, s, func(of *jetstream.ClusterInfo) bool { return of.Leader != "" && of.Leader != failing.name })
			elected <- time.Now()
		}()
		longest := load.run(t, count)
		leaders := <-elected
		require.False(t, t.Failed())
		t.Logf("without %s: leaders were elected after %s, and a workspace waited up to %s",
			failing.name, leaders.Sub(killed), longest)
		s.NewDeployment("rollout-without-"+failing.name, 1)
		require.NoError(t, failing.Start())
	}
	s.RequireConverged()
}

// load creates workspaces.
type load struct {
	s       *fixture.System
	created int
}

// run creates workspaces one after the other. It returns how long one waited at most, when all are Running or the test
// has failed.
func (l *load) run(t *testing.T, count int) (longest time.Duration) {
	t.Helper()
	var following sync.WaitGroup
	waits := make([]time.Duration, count)
	next := time.NewTicker(interval)
	defer next.Stop()
	for i := range count {
		<-next.C
		begun := time.Now()
		w := l.s.Create(fmt.Sprintf("load-%d", l.created), fixture.GoodImage)
		l.created++
		following.Go(func() {
			l.follow(t, w)
			waits[i] = time.Since(begun)
		})
	}
	following.Wait()
	return slices.Max(waits).Round(time.Millisecond)
}

func (l *load) follow(t *testing.T, w *fixture.Workspace) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Timeout)
	defer cancel()
	poll := time.NewTicker(fixture.PollInterval)
	defer poll.Stop()
	is := fixture.Settled(statev1.ActualState_ACTUAL_STATE_RUNNING)
	for {
		got, err := l.s.API.Workspaces.GetWorkspace(ctx, connect.NewRequest(&statev1.GetWorkspaceRequest{
			Workspace: w.Reference(),
		}))
		if err == nil && is(got.Msg.GetWorkspace()) {
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Errorf("workspace %s is not Running: %v", w.Name, err)
			return
		}
	}
}

// awaitServers waits until the condition holds for every stream and every consumer of the agent, and until there is a
// leader of JetStream, which places new consumers.
func awaitServers(t *testing.T, s *fixture.System, holds func(*jetstream.ClusterInfo) bool) {
	t.Helper()
	await := func(name string, read func(context.Context) (*jetstream.ClusterInfo, error)) {
		if t.Failed() {
			return
		}
		assert.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			of, err := read(ctx)
			return err == nil && (of == nil || holds(of))
		}, fixture.Timeout, fixture.PollInterval, name)
	}
	await("JetStream", func(ctx context.Context) (*jetstream.ClusterInfo, error) {
		_, err := s.JS.AccountInfo(ctx) // only the leader answers
		return nil, err
	})
	for _, declared := range topology.Streams() {
		await(declared.Name, func(ctx context.Context) (*jetstream.ClusterInfo, error) {
			stream, err := s.JS.Stream(ctx, declared.Name)
			if err != nil {
				return nil, err
			}
			return stream.CachedInfo().Cluster, nil
		})
	}
	for _, declared := range topology.AgentConsumers(stack.Cell, s.AgentID) {
		await(declared.Stream+"/"+declared.Config.Durable, func(ctx context.Context) (*jetstream.ClusterInfo, error) {
			consumer, err := s.JS.Consumer(ctx, declared.Stream, declared.Config.Durable)
			if err != nil {
				return nil, err
			}
			return consumer.CachedInfo().Cluster, nil
		})
	}
}

// complete reports whether there are three replicas, all up to date.
func complete(cluster *jetstream.ClusterInfo) bool {
	if cluster.Leader == "" || len(cluster.Replicas) != 2 {
		return false
	}
	for _, replica := range cluster.Replicas {
		if !replica.Current || replica.Offline {
			return false
		}
	}
	return true
}
