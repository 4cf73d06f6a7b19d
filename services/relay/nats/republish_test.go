package nats_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/nats"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/tools/testkit/natstest"
)

// operator reads the streams.
func (s *system) operator(t *testing.T) jetstream.JetStream {
	t.Helper()
	if s.reader == nil {
		s.reader = s.as(t, natsauth.PrincipalOperator)
	}
	return s.reader
}

// freezable is a relay with book and teller that can be stopped for a while, as a process is whose machine stands still.
type freezable struct {
	*relay

	mu    sync.Mutex
	still chan struct{}
	stood chan struct{}
}

func (s *system) freezable(t *testing.T, id string) *freezable {
	t.Helper()
	js := s.as(t, natsauth.PrincipalRelay)
	f := &freezable{relay: &relay{known: registry.New(), js: js}, stood: make(chan struct{}, 1)}
	teller := nats.NewEventPublisher(js, cell, id, slog.New(slog.DiscardHandler))
	f.RegistryStore = nats.NewRegistryStore(nats.RegistryConfig{
		JetStream: js, Self: registry.Relay{ID: id, URL: "https://" + id}, Registry: f.known, Lease: 2 * time.Second, Events: teller, Removed: f.gone, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{}, 100)
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			_ = f.Run(ctx, func() { ready <- struct{}{} })
		}
	})
	running.Go(func() { _ = teller.Run(ctx, context.Background()) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	<-ready
	return f
}

func (f *freezable) gone(registry.Connection) {
	f.mu.Lock()
	still := f.still
	f.mu.Unlock()
	if still != nil {
		f.stood <- struct{}{}
		<-still
	}
}

// freeze has it stand still when it next learns that somebody is gone, which another relay brings about.
func (f *freezable) freeze(t *testing.T, other *freezable) (thaw func()) {
	t.Helper()
	other.Connected(connection(99, 99))
	f.sees(t, 99, 99)
	still := make(chan struct{})
	f.mu.Lock()
	f.still = still
	f.mu.Unlock()
	other.Disconnected(connection(99, 99), time.Now(), events.DisconnectReasonAgentLeft)
	<-f.stood
	thaw = sync.OnceFunc(func() {
		f.mu.Lock()
		f.still = nil
		f.mu.Unlock()
		close(still)
	})
	t.Cleanup(thaw)
	return thaw
}

// told is what the stream says of an agent's connection.
type told struct {
	id          string
	reason      events.DisconnectReason
	connectedAt time.Time
}

// hear what the stream says of agent 7 from its beginning, until the last that was said is what the test waits for.
func (s *system) hear(t *testing.T, enough func(last told) bool) (all []told) {
	t.Helper()
	consumer, err := s.operator(t).OrderedConsumer(natstest.Context(t), topology.StreamAgents, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{cell.AgentConnected(7), cell.AgentDisconnected(7)},
	})
	require.NoError(t, err)
	messages, err := consumer.Messages()
	require.NoError(t, err)
	defer messages.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for len(all) == 0 || !enough(all[len(all)-1]) {
		m, err := messages.Next(jetstream.NextContext(ctx))
		require.NoError(t, err, "after %+v", all)
		e, err := event.Decode(m.Headers(), m.Data())
		require.NoError(t, err)
		var data events.AgentDisconnected // has all that is of interest of the other, too
		require.NoError(t, json.Unmarshal(e.Data(), &data))
		require.Equal(t, e.Type() == events.TypeAgentDisconnected, data.Reason != "")
		all = append(all, told{e.ID(), data.Reason, data.ConnectedAt})
	}
	return all
}

func isLost(last told) bool { return last.reason == events.DisconnectReasonLost }

func isAgain(last told) bool { return last.reason == "" && last.id != "1/connected" }

func hasLeft(last told) bool { return last.reason == events.DisconnectReasonAgentLeft }

// requireTurns has a connection come and go in turns, each time as something that was not told before. A relay of a machine that has stood still is lost more often than the test had it.
func requireTurns(t *testing.T, c registry.Connection, all []told) {
	t.Helper()
	for i, each := range all {
		want := told{fmt.Sprintf("%d/connected", c.ID), "", c.ConnectedAt}
		if i%2 == 1 {
			want.id, want.reason = fmt.Sprintf("%d/disconnected", c.ID), events.DisconnectReasonLost
		}
		if i > 1 {
			want.id += fmt.Sprintf("/%d", i/2)
		}
		if i == len(all)-1 {
			want.reason = events.DisconnectReasonAgentLeft
		}
		require.Equal(t, want, each, "%d of %+v", i, all)
	}
}

// What others take for lost is told once more when it is not, whatever this relay has missed meanwhile.
func TestARelayThatWasTakenForDeadTellsAgainWhoIsThere(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(t *testing.T, s *system, a *freezable){
		"it goes on where it was":       func(*testing.T, *system, *freezable) {},
		"its connection is another one": func(t *testing.T, _ *system, a *freezable) { require.NoError(t, a.js.Conn().ForceReconnect()) },
		"there is no trace of it": func(t *testing.T, s *system, a *freezable) {
			require.NoError(t, a.js.Conn().ForceReconnect())
			stream, err := s.state.Stream(t.Context(), topology.StreamRelays)
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				_, err := stream.GetLastMsgForSubject(t.Context(), "$KV."+topology.BucketRelays+"."+connection(7, 1).Key())
				return errors.Is(err, jetstream.ErrMsgNotFound)
			}, patience, 10*time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSystem(t)
			a, b := s.freezable(t, "a"), s.freezable(t, "b")
			one := connection(7, 1)
			a.Connected(one)
			b.sees(t, 7, 1)
			thaw := a.freeze(t, b)
			s.hear(t, isLost)
			b.sees(t, 7)
			meanwhile(t, s, a)
			thaw()
			b.sees(t, 7, 1)
			s.hear(t, isAgain)
			a.Disconnected(one, time.Now(), events.DisconnectReasonAgentLeft)
			all := s.hear(t, hasLeft)
			require.GreaterOrEqual(t, len(all), 4)
			requireTurns(t, one, all)
		})
	}
}

// NATS loses the bucket, and the other relays do not find there again what this one holds.
func TestARelayThatIsAwayWhenTheBucketIsLostTellsAgainWhoIsThere(t *testing.T) {
	t.Parallel()
	s := startSystem(t)
	a, b := s.freezable(t, "a"), s.freezable(t, "b")
	one := connection(7, 1)
	a.Connected(one)
	b.sees(t, 7, 1)
	thaw := a.freeze(t, b)
	s.server.Down()
	require.NoError(t, s.server.Restart())
	require.Eventually(t, func() bool { return topology.EnsureRelays(t.Context(), s.state, topology.Options{}) == nil }, patience, 10*time.Millisecond)
	s.hear(t, isLost)
	thaw()
	b.sees(t, 7, 1)
	s.hear(t, isAgain)
	a.Disconnected(one, time.Now(), events.DisconnectReasonAgentLeft)
	requireTurns(t, one, s.hear(t, hasLeft))
}

// A queue that is full has what is told again wait, and nobody else.
func TestATellerThatIsFullIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	teller := nats.NewEventPublisher(nil, cell, "a", slog.New(slog.DiscardHandler))
	count := 0
	for teller.Republish(connection(7, 1)) {
		count++
		require.Less(t, count, 1_000_000)
	}
	require.Positive(t, count)
}
