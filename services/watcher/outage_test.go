package watcher_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/testkit/labtest"
	"lockstep.internal/tools/testkit/natstest"
)

func TestWatcherRetriesWhileKubernetesIsUnavailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	whole, err := os.ReadFile(labtest.Kubeconfig(t))
	require.NoError(t, err)
	proxy := newProxy(t, serverOf(t, string(whole)))
	path := filepath.Join(t.TempDir(), "kubeconfig")
	proxied := strings.ReplaceAll(string(whole), serverOf(t, string(whole)), proxy.address())
	require.NoError(t, os.WriteFile(path, []byte(proxied), 0o600))

	proxy.cut()
	cfg := f.config(t)
	cfg.Kubernetes.Kubeconfig = path
	// The test waits for the loss of the Lease.
	cfg.Lease.Duration, cfg.Lease.RenewDeadline = 9*time.Second, 8*time.Second
	p := start(t, cfg)
	p.awaitReason(t, "leader", false, "lockstep-agent-")
	p.awaitReason(t, "kubernetes", false, "API server is not ready")
	proxy.restore()
	recorder := f.record(t)
	recorder.resynced(t)
	p.awaitReason(t, "leader", true, "")

	w := f.workspace(t)
	w.create(t, "before", 0)
	recorder.until(t, "the report", func(h recorded) bool { return h.Object.Name == "before" })
	proxy.cut()
	p.awaitReason(t, "kubernetes", false, "API server is not ready")
	p.awaitReason(t, "leader", false, "has not answered")
	w.remove(t, "before")
	w.create(t, "after", 0)
	proxy.restore()
	begin, members := recorder.resynced(t)
	for len(of(members, events.TypeObservedWorkload, "after")) == 0 {
		begin, members = recorder.resynced(t)
	}
	require.Equal(t, events.ResyncCauseLeaderElected, begin.Cause, "the Lease was lost")
	require.Empty(t, of(members, events.TypeObservedWorkload, "before"))
	p.awaitReason(t, "kubernetes", true, "")
}

// A request that is never answered is not an error. No election asks the API server while NATS is down.
func TestSilentAPIServerIsReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.server.Down()
	var listening net.ListenConfig
	silent, err := listening.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	whole, err := os.ReadFile(labtest.Kubeconfig(t))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	redirected := strings.ReplaceAll(string(whole), serverOf(t, string(whole)), silent.Addr().String())
	require.NoError(t, os.WriteFile(path, []byte(redirected), 0o600))
	start(t, f.configWith(path)).awaitReason(t, "kubernetes", false, "API server is not ready")
}

func TestConsumerThatDoesNotAnswerIsReported(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := start(t, f.config(t))
	p.awaitReason(t, "leader", true, "")
	consumer := topology.WatcherConsumer(f.agent)
	require.NoError(t, f.js.DeleteConsumer(natstest.Context(t), topology.StreamControl, consumer))
	p.awaitReason(t, "leader", false, "consumer "+consumer+" of stream CONTROL has not answered")
	require.NoError(t, topology.EnsureAgent(natstest.Context(t), f.js, cellName, f.agent))
	p.awaitReason(t, "leader", true, "")
}

func serverOf(t *testing.T, kubeconfig string) string {
	t.Helper()
	_, after, found := strings.Cut(kubeconfig, "https://")
	require.True(t, found)
	address, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(address)
}
