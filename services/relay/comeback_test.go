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

// Everybody comes back at once when a relay is started again.
func TestManyAgentsComeBackAtOnce(t *testing.T) { //nolint:paralleltest // it measures
	const agents, firstID = 300, 1000
	b := setup(t)
	for i := range agents {
		b.agent(firstID+i, false)
	}
	r := b.relay()
	require.Eventually(t, func() bool { return b.may(r, firstID+agents-1) }, soon, tick)
	w := newWall(t, r.addrs["agents"])
	ctx, cancel := context.WithCancel(t.Context())
	before := measure()
	var living sync.WaitGroup
	for i := range agents {
		living.Go(func() {
			for ctx.Err() == nil {
				s, err := b.puppet(ctx, w.addr, firstID+i)
				if err != nil {
					select {
					case <-time.After(10 * tick):
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
	all := "lockstep_relay_connections " + strconv.Itoa(agents)
	b.shows(r, all)
	connected := measure()

	again := b.relay()
	w.leadTo(again.addrs["agents"])
	r.stop()
	b.shows(again, all, "lockstep_relay_known_connections "+strconv.Itoa(agents))
	for _, id := range []int{firstID, firstID + agents - 1} {
		status, body := b.get(again, id, "/back")
		require.Equal(t, 200, status)
		require.Equal(t, fmt.Sprintf("%d /back", id), body)
	}
	connected.requireNoMore(t)
	cancel()
	living.Wait()
	b.shows(again, "lockstep_relay_connections 0", "lockstep_relay_known_connections 0")
	before.requireNoMore(t)
	again.stop() // it tells everything before it ends
	come, gone := map[string]bool{}, map[string]bool{}
	for _, c := range everything[events.AgentConnected](b, events.TypeAgentConnected) {
		come[c.ConnectionID] = true
	}
	for _, d := range everything[events.AgentDisconnected](b, events.TypeAgentDisconnected) {
		gone[d.ConnectionID] = true
	}
	require.GreaterOrEqual(t, len(come), 2*agents)
	require.Equal(t, come, gone)
}
