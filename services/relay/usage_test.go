package relay_test

import (
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/relay/peer"
)

// usage has the goroutines and the heap size of the process.
type usage struct {
	goroutines int
	heap       uint64
}

// measure is a baseline for a test with one relay. A test with several uses [fixture.baseline].
func measure() usage {
	runtime.GC()
	runtime.GC() // sync.Pool content survives one GC
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{len(goroutines()), m.HeapAlloc}
}

// goroutines returns the stacks of all goroutines, except those of the NATS client.
func goroutines() []string {
	text := make([]byte, 16<<20)
	n := runtime.Stack(text, true)
	if n == len(text) {
		panic("the stacks of all goroutines do not fit into the buffer: some would not be counted")
	}
	text = text[:n]
	return slices.DeleteFunc(strings.Split(string(text), "\n\n"), func(stack string) bool {
		return strings.Contains(stack, "github.com/nats-io/")
	})
}

// requireNoLeak waits until usage is back to its earlier value, with a tolerance for the test's own requests.
func (before usage) requireNoLeak(t *testing.T) {
	t.Helper()
	const toleratedGoroutines, toleratedHeap = 6, 24 << 20
	var now usage
	isBack := func() bool {
		now = measure()
		return now.goroutines <= before.goroutines+toleratedGoroutines && now.heap <= before.heap+toleratedHeap
	}
	// The pauses leave the processor to the goroutines that have to end. Eventually would add goroutines of its own.
	poll, deadline := time.NewTicker(pollInterval), time.After(timeout)
	defer poll.Stop()
	for !isBack() {
		select {
		case <-poll.C:
		case <-deadline:
			stacks := strings.Join(goroutines(), "\n\n")
			require.FailNow(t, "more than before", "it was %+v, and is %+v:\n%s", before, now, stacks)
		}
	}
	t.Logf("before: %d goroutines, %d KiB", before.goroutines, before.heap>>10)
	t.Logf("after: %d goroutines, %d KiB", now.goroutines, now.heap>>10)
}

// baseline returns the usage after each relay has forwarded requests to an agent at the first one. Tunnels between
// relays stay open: before the first request there are none, and a baseline without them is too low.
func (f *fixture) baseline(first *running, others ...*running) usage {
	f.t.Helper()
	replica := f.replicaWith(func(cfg *agent.Config) {
		cfg.Relay.URLs, cfg.Pod = []string{"ws://" + first.addrs["agents"]}, "lockstep/baseline"
	})
	for _, r := range append(others, first) {
		f.waitForMetrics(r, "lockstep_relay_known_connections 1")
		for range 2 * peer.DefaultTunnels {
			conn, _, response := f.connect(r, developer, "web") // a new stream, through the next tunnel
			require.Equal(f.t, http.StatusSwitchingProtocols, response.StatusCode)
			require.NoError(f.t, conn.Close())
		}
	}
	replica.stop()
	for _, r := range append(others, first) {
		f.waitForMetrics(r, "lockstep_relay_known_connections 0", "lockstep_relay_requests 0")
	}
	return measure()
}
