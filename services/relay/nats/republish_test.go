package nats_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	relaynats "lockstep.internal/services/relay/nats"
	"lockstep.internal/services/relay/registry"
	"lockstep.internal/tools/testkit/natstest"
)

// administrator reads the streams.
func (s *system) administrator(t *testing.T) jetstream.JetStream {
	t.Helper()
	if s.reader == nil {
		s.reader = s.as(t, natsadmin.Name)
	}
	return s.reader
}

// pausableRelay is a relay with store and publisher whose Run loop can be blocked, as in a stalled process.
type pausableRelay struct {
	*relay

	blocked chan struct{}              // receives when the Run loop is blocked
	rounds  chan []registry.Connection // see lostRounds

	mu     sync.Mutex
	resume chan struct{} // closed to unblock the Run loop; nil while it is not to block
}

// lostRounds sends the argument of each PublishLost. A round removes its connections from the bucket after
// PublishLost, and before the next round.
type lostRounds struct {
	*relaynats.EventPublisher

	rounds chan<- []registry.Connection
}

func (l lostRounds) PublishLost(ctx context.Context, lost []registry.Connection) error {
	l.rounds <- slices.Clone(lost)
	return l.EventPublisher.PublishLost(ctx, lost)
}

func (s *system) startPausableRelay(t *testing.T, id string, lease time.Duration) *pausableRelay {
	t.Helper()
	js := s.as(t, natsauth.PrincipalRelay)
	p := &pausableRelay{relay: &relay{registry: registry.New(), js: js}, blocked: make(chan struct{}, 1)}
	p.rounds = make(chan []registry.Connection, 10_000)
	publisher := relaynats.NewEventPublisher(js, cell, id, slog.New(slog.DiscardHandler))
	p.RegistryStore = relaynats.NewRegistryStore(relaynats.RegistryConfig{
		JetStream: js, Self: registry.Relay{ID: id, URL: "https://" + id}, Registry: p.registry, Lease: lease,
		Events: lostRounds{publisher, p.rounds}, OnRemoved: p.onRemoved, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan struct{}, 100)
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			_ = p.Run(ctx, func() { ready <- struct{}{} })
		}
	})
	running.Go(func() { _ = publisher.Run(ctx, context.Background()) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	<-ready
	return p
}

func (p *pausableRelay) onRemoved(registry.Connection) {
	p.mu.Lock()
	resume := p.resume
	p.mu.Unlock()
	if resume != nil {
		p.blocked <- struct{}{}
		<-resume
	}
}

// block blocks the Run loop at the next removal, which another relay triggers.
func (p *pausableRelay) block(t *testing.T, other *pausableRelay) (unblock func()) {
	t.Helper()
	other.Connected(connection(99, 99))
	p.requireConnections(t, 99, 99)
	resume := make(chan struct{})
	p.mu.Lock()
	p.resume = resume
	p.mu.Unlock()
	other.Disconnected(connection(99, 99), time.Now(), events.DisconnectReasonAgentLeft)
	<-p.blocked
	unblock = sync.OnceFunc(func() {
		p.mu.Lock()
		p.resume = nil
		p.mu.Unlock()
		close(resume)
	})
	t.Cleanup(unblock)
	return unblock
}

// connectionEvent is an event about a connection.
type connectionEvent struct {
	id          string
	reason      events.DisconnectReason
	connectedAt time.Time
}

// readEvents reads the events of agent 7 from the first, until done returns true for one.
func (s *system) readEvents(t *testing.T, done func(connectionEvent) bool) (all []connectionEvent) {
	t.Helper()
	agent7 := jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{cell.AgentConnected(7), cell.AgentDisconnected(7)},
	}
	consumer, err := s.administrator(t).OrderedConsumer(natstest.Context(t), topology.StreamAgents, agent7)
	require.NoError(t, err)
	messages, err := consumer.Messages()
	require.NoError(t, err)
	defer messages.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for len(all) == 0 || !done(all[len(all)-1]) {
		m, err := messages.Next(jetstream.NextContext(ctx))
		require.NoError(t, err, "after %+v", all)
		e, err := event.Decode(m.Headers(), m.Data())
		require.NoError(t, err)
		var data events.AgentDisconnected // has all needed fields of both types
		require.NoError(t, json.Unmarshal(e.Data(), &data))
		require.Equal(t, e.Type() == events.TypeAgentDisconnected, data.Reason != "")
		all = append(all, connectionEvent{e.ID(), data.Reason, data.ConnectedAt})
	}
	return all
}

// awaitRemoval waits until the relay has published the connection as lost and removed its entry from the bucket.
func (p *pausableRelay) awaitRemoval(t *testing.T, c registry.Connection) {
	t.Helper()
	for {
		lost := receive(t, p.rounds)
		if slices.ContainsFunc(lost, func(l registry.Connection) bool { return l.ID == c.ID }) {
			receive(t, p.rounds)
			return
		}
	}
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(timeout):
		require.Fail(t, "timed out waiting for a value")
		panic("unreachable")
	}
}

// endLease removes the lease of a relay, as its expiry does.
func (p *pausableRelay) endLease(t *testing.T, id string) {
	t.Helper()
	kv, err := p.js.KeyValue(natstest.Context(t), topology.BucketRelays)
	require.NoError(t, err)
	require.NoError(t, kv.Purge(natstest.Context(t), "relay."+id))
}

func isLost(e connectionEvent) bool { return e.reason == events.DisconnectReasonLost }

func isReconnected(e connectionEvent) bool { return e.reason == "" && e.id != "1/connected" }

func isDisconnected(e connectionEvent) bool { return e.reason == events.DisconnectReasonAgentLeft }

// requireAlternating checks that connected and lost events alternate with new ids. On a slow machine there may
// be more pairs.
func requireAlternating(t *testing.T, c registry.Connection, all []connectionEvent) {
	t.Helper()
	for i, got := range all {
		want := connectionEvent{fmt.Sprintf("%d/connected", c.ID), "", c.ConnectedAt}
		if i%2 == 1 {
			want.id, want.reason = fmt.Sprintf("%d/disconnected", c.ID), events.DisconnectReasonLost
		}
		if i > 1 {
			want.id += fmt.Sprintf("/%d", i/2)
		}
		if i == len(all)-1 {
			want.reason = events.DisconnectReasonAgentLeft
		}
		require.Equal(t, want, got, "%d of %+v", i, all)
	}
}

// A connection that was reported lost by mistake is republished, whatever events this relay missed.
func TestStalledRelayRepublishesConnections(t *testing.T) {
	t.Parallel()
	for name, duringPause := range map[string]func(t *testing.T, s *system, a *pausableRelay){
		"same NATS connection": func(*testing.T, *system, *pausableRelay) {},
		"NATS reconnect": func(t *testing.T, _ *system, a *pausableRelay) {
			require.NoError(t, a.js.Conn().ForceReconnect())
		},
		"removal marker expired": func(t *testing.T, _ *system, a *pausableRelay) {
			require.NoError(t, a.js.Conn().ForceReconnect())
			stream, err := a.js.Stream(t.Context(), topology.StreamRelays)
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				_, err := stream.GetLastMsgForSubject(t.Context(), "$KV."+topology.BucketRelays+"."+connection(7, 1).Key())
				return errors.Is(err, jetstream.ErrMsgNotFound)
			}, timeout, 10*time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			a, b := s.startPausableRelay(t, "a", timeout), s.startPausableRelay(t, "b", shortLease)
			one := connection(7, 1)
			a.Connected(one)
			b.requireConnections(t, 7, 1)
			unblock := a.block(t, b)
			b.endLease(t, "a")
			s.readEvents(t, isLost)
			b.requireConnections(t, 7)
			duringPause(t, s, a)
			unblock()
			b.requireConnections(t, 7, 1)
			s.readEvents(t, isReconnected)
			a.Disconnected(one, time.Now(), events.DisconnectReasonAgentLeft)
			all := s.readEvents(t, isDisconnected)
			require.GreaterOrEqual(t, len(all), 4)
			requireAlternating(t, one, all)
		})
	}
}

// NATS loses the bucket while this relay is stalled, so its entries are missing from the new bucket.
func TestStalledRelayRepublishesAfterBucketLoss(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	// a republishes a connection if the bucket is older than its lease, so both have the same lease.
	const lease = 6 * time.Second
	a, b := s.startPausableRelay(t, "a", lease), s.startPausableRelay(t, "b", lease)
	one := connection(7, 1)
	a.Connected(one)
	b.requireConnections(t, 7, 1)
	unblock := a.block(t, b)
	s.server.Down()
	require.NoError(t, s.server.Restart())
	b.awaitRemoval(t, one) // a removal after a has written its entry would cause a second republish
	unblock()
	b.requireConnections(t, 7, 1)
	s.readEvents(t, isReconnected)
	a.Disconnected(one, time.Now(), events.DisconnectReasonAgentLeft)
	requireAlternating(t, one, s.readEvents(t, isDisconnected))
}

// Republish does not block on a full queue.
func TestRepublishDoesNotBlock(t *testing.T) {
	t.Parallel()
	publisher := relaynats.NewEventPublisher(nil, cell, "a", slog.New(slog.DiscardHandler))
	count := 0
	for publisher.Republish(connection(7, 1)) {
		count++
		require.Less(t, count, 1_000_000)
	}
	require.Positive(t, count)
}
