package relay_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
)

// All agents reconnect at once after a relay restart.
func TestManyAgentsReconnectAtOnce(t *testing.T) { //nolint:paralleltest // measures memory
	const agents, firstID = 300, 1000
	f := newFixture(t)
	for i := range agents {
		f.publishAgent(firstID+i, false)
	}
	r := f.relay()
	require.Eventually(t, func() bool { return f.knowsAgent(r, firstID+agents-1) }, timeout, pollInterval)
	proxy := newFaultProxy(t, r.addrs["agents"])
	ctx, cancel := context.WithCancel(t.Context())
	before := measure()
	var clients sync.WaitGroup
	for i := range agents {
		clients.Go(func() {
			for ctx.Err() == nil {
				s, err := f.dialFakeAgent(ctx, proxy.addr, firstID+i)
				if err != nil {
					select {
					case <-time.After(10 * pollInterval):
					case <-ctx.Done():
					}
					continue
				}
				select {
				case <-s.Done():
				case <-s.PeerDraining():
				case <-ctx.Done():
				}
				_ = s.Close()
			}
		})
	}
	// A connection is counted from its request on. The registry knows it once it is served.
	all := []string{
		"lockstep_relay_connections " + strconv.Itoa(agents), "lockstep_relay_known_connections " + strconv.Itoa(agents),
	}
	f.waitForMetrics(r, all...)
	whileConnected := measure()

	restarted := f.relay()
	proxy.setTarget(restarted.addrs["agents"])
	r.stop()
	f.waitForMetrics(restarted, all...)
	for _, id := range []int{firstID, firstID + agents - 1} {
		status, body := f.get(restarted, id, "/back")
		require.Equal(t, 200, status)
		require.Equal(t, fmt.Sprintf("%d /back", id), body)
	}
	whileConnected.requireNoLeak(t)
	cancel()
	clients.Wait()
	f.waitForMetrics(restarted, "lockstep_relay_connections 0", "lockstep_relay_known_connections 0")
	before.requireNoLeak(t)
	restarted.stop() // it publishes all events before it stops
	connected, disconnected := map[string]bool{}, map[string]bool{}
	for _, c := range allEvents[events.AgentConnected](f, events.TypeAgentConnected) {
		connected[c.ConnectionID] = true
	}
	for _, d := range allEvents[events.AgentDisconnected](f, events.TypeAgentDisconnected) {
		disconnected[d.ConnectionID] = true
	}
	require.GreaterOrEqual(t, len(connected), 2*agents)
	require.Equal(t, connected, disconnected)
}
