package agentlistener_test

import (
	"log/slog"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/services/relay/tunnel"
)

// blockingObserver blocks in Connected until release is closed.
type blockingObserver struct {
	events  chan string
	release chan struct{}
}

func (o *blockingObserver) Connected(registry.Connection) {
	o.events <- "connected"
	<-o.release
}

func (o *blockingObserver) Disconnected(_ registry.Connection, _ time.Time, reason events.DisconnectReason) {
	o.events <- string(reason)
}

// A drained session without streams ends at once, maybe before its reason is read.
func TestDisconnectReasonAfterSessionEnd(t *testing.T) {
	t.Parallel()
	for want, end := range map[events.DisconnectReason]func(agent *tunnel.Session, relay *tunnel.SessionGroup){
		events.DisconnectReasonRelayLeft: func(_ *tunnel.Session, relay *tunnel.SessionGroup) { relay.Drain(t.Context()) },
		events.DisconnectReasonAgentLeft: func(agent *tunnel.Session, _ *tunnel.SessionGroup) { agent.Drain() },
		events.DisconnectReasonLost:      func(agent *tunnel.Session, _ *tunnel.SessionGroup) { _ = agent.Close() },
	} {
		f := newFixture(t)
		observer := &blockingObserver{events: make(chan string, 2), release: make(chan struct{})}
		var sessions tunnel.SessionGroup
		handler := agentlistener.NewHandler(agentlistener.Config{
			RelayID: "r", Agents: f, Pool: f, Observer: observer, AgentConfigs: f,
			Sessions: &sessions, MaxConnections: 1, MaxConnectionsPerAgent: 1,
			Logger: slog.New(slog.DiscardHandler), Now: time.Now,
		})
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		f.url = strings.Replace(server.URL, "http", "ws", 1)
		s, err := f.dial(f.header(7, f.token))
		require.NoError(t, err)
		_, err = s.Open([]byte(agentlistener.ConfigStreamMetadata))
		require.NoError(t, err)
		require.Equal(t, "connected", <-observer.events)
		f.mu.Lock()
		relaySessions := slices.Collect(maps.Values(f.pool))
		f.mu.Unlock()
		require.Len(t, relaySessions, 1)
		end(s, &sessions)
		<-relaySessions[0].Done()
		close(observer.release)
		require.Equal(t, string(want), <-observer.events)
		require.Eventually(t, func() bool { return handler.Connections() == 0 }, timeout, time.Millisecond)
	}
}
