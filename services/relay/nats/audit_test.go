package nats_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay/audit"
	relaynats "lockstep.internal/services/relay/nats"
)

// One caller floods a small stream: the records of another caller, and its own first ones, stay.
func TestFloodDoesNotEvictAuditRecords(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	stream, err := s.state.Stream(t.Context(), topology.StreamAudit)
	require.NoError(t, err)
	small := stream.CachedInfo().Config
	small.MaxBytes = 256 << 10
	_, err = s.state.UpdateStream(t.Context(), small)
	require.NoError(t, err)

	logger := slog.New(slog.DiscardHandler)
	publisher := relaynats.NewEventPublisher(s.as(t, natsauth.PrincipalRelay), cell, "a", logger)
	log := audit.NewLog(audit.Config{Publish: publisher.Publish, Burst: 100, PerMinute: 60, Logger: logger})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- log.Run(ctx, context.Background()) }()
	send := func(user int64, path string) {
		r := audit.Record{
			RequestID: path, UserID: user, AgentID: 7, Target: "shop", Protocol: audit.HTTP, Phase: audit.Ended, Method: "GET",
			Path: path, StartedAt: time.Now(),
		}
		if !log.Allow(r, 1) {
			log.Sum(r)
			return
		}
		require.NoError(t, log.Reserve(t.Context(), 1))
		log.Add(r)
	}
	send(5, "first of the flood")
	send(6, "of another caller")
	const flood = 50_000 // fifty times what the stream holds
	for range flood {
		send(5, strings.Repeat("<", audit.MaxPath)) // six times as long when it is stored
	}
	send(6, "later")
	cancel()
	require.NoError(t, <-ended)

	found, total := map[string]bool{}, 0
	consumer, err := s.as(t, natsadmin.Name).OrderedConsumer(
		t.Context(), topology.StreamAudit, jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	info, err := consumer.Info(t.Context())
	require.NoError(t, err)
	for range info.NumPending {
		m, err := consumer.Next(jetstream.FetchMaxWait(timeout))
		require.NoError(t, err)
		batch, err := events.Decode[events.AuditRequests](m.Data())
		require.NoError(t, err)
		for _, r := range batch.Requests {
			found[r.RequestID] = true
			if r.Caller.UserID == 5 {
				total += r.Count
			}
		}
	}
	require.True(t, found["first of the flood"] && found["of another caller"] && found["later"], "%v", found)
	require.Equal(t, 1+flood, total, "every request is counted")
}
