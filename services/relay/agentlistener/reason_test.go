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

// busy is told of what comes, and has no time to go on.
type busy struct {
	told chan string
	let  chan struct{}
}

func (b *busy) Connected(registry.Connection) {
	b.told <- "connected"
	<-b.let
}

func (b *busy) Disconnected(_ registry.Connection, _ time.Time, why events.DisconnectReason) {
	b.told <- string(why)
}

// A connection that is drained without streams ends at once: on a busy machine before anybody has asked why.
func TestWhyAConnectionEndedIsToldHoweverLateItIsAsked(t *testing.T) {
	t.Parallel()
	for want, end := range map[events.DisconnectReason]func(agents *tunnel.Session, relays *tunnel.SessionGroup){
		events.DisconnectReasonRelayLeft: func(_ *tunnel.Session, relays *tunnel.SessionGroup) { relays.Drain(t.Context()) },
		events.DisconnectReasonAgentLeft: func(agents *tunnel.Session, _ *tunnel.SessionGroup) { agents.Drain() },
		events.DisconnectReasonLost:      func(agents *tunnel.Session, _ *tunnel.SessionGroup) { _ = agents.Close() },
	} {
		b, teller := setup(t), &busy{told: make(chan string, 2), let: make(chan struct{})}
		var sessions tunnel.SessionGroup
		handler := agentlistener.NewHandler(agentlistener.Config{
			RelayID: "r", Agents: b, Pool: b, Observers: []agentlistener.Observer{teller}, AgentConfigs: b, Sessions: &sessions, MaxConnections: 1, MaxConnectionsPerAgent: 1,
			Logger: slog.New(slog.DiscardHandler), Now: time.Now,
		})
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		b.url = strings.Replace(server.URL, "http", "ws", 1)
		s, err := b.dial(b.header(7, b.token))
		require.NoError(t, err)
		_, err = s.Open([]byte(agentlistener.ConfigStreamHead))
		require.NoError(t, err)
		require.Equal(t, "connected", <-teller.told)
		b.mu.Lock()
		relays := slices.Collect(maps.Values(b.held))
		b.mu.Unlock()
		require.Len(t, relays, 1)
		end(s, &sessions)
		<-relays[0].Done()
		close(teller.let)
		require.Equal(t, string(want), <-teller.told)
		require.Eventually(t, func() bool { return handler.Connections() == 0 }, soon, time.Millisecond)
	}
}
