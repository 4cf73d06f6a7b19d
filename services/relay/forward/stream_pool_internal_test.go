package forward

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/connections"
	"lockstep.internal/services/relay/route"
	"lockstep.internal/services/relay/tunnel"
)

func TestIdleStreamsOfOneAgentAreLimited(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	opening := tunnel.NewSession(near, false, true, tunnel.Config{}, nil)
	accepting := tunnel.NewSession(far, true, true, tunnel.Config{}, func(*tunnel.Stream) {})
	var serving sync.WaitGroup
	serving.Go(func() { _ = opening.Serve() })
	serving.Go(func() { _ = accepting.Serve() })
	t.Cleanup(func() {
		_, _ = opening.Close(), accepting.Close()
		serving.Wait()
	})
	pool := newStreamPool()
	t.Cleanup(pool.close)
	put := func(agent int64, target string) *pooledStream {
		s, err := opening.Open(nil)
		require.NoError(t, err)
		to := route.Destination{AgentID: agent, Target: target}
		p := &pooledStream{Stream: &connections.Stream{Stream: s}, to: to, opened: time.Now()}
		pool.put(p)
		return p
	}
	for i := range maxIdleStreams {
		require.NoError(t, put(7, fmt.Sprint("target", i)).Err())
	}
	require.Error(t, put(7, "more").Err())
	require.NoError(t, put(8, "another agent").Err())
	require.NotNil(t, pool.get(route.Destination{AgentID: 7, Target: "target0"}))
	require.NoError(t, put(7, "more").Err())
	pool.evict(0)
	require.Empty(t, pool.perAgent)
}
