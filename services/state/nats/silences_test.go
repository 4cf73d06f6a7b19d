package nats

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

// judged are the calls of Record: the times before which agents were silent.
type judged []time.Time

// newSilences returns a detector with an own NATS, of which every message is processed.
func newSilences(t *testing.T, patience time.Duration) (*Silences, *judged, *natsd.Server) {
	t.Helper()
	server := natstest.Start(t, natsd.Options{})
	js := natstest.JetStream(t, server)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: topology.StreamObserved, Subjects: []string{topology.Cell("local").All(topology.FamilyObserved)},
	})
	require.NoError(t, err)
	calls := &judged{}
	return &Silences{
		JetStream: js, Patience: patience, Logger: slog.New(slog.DiscardHandler),
		Processed: func(context.Context) (uint64, error) { return 1 << 40, nil },
		Record: func(_ context.Context, before, _ time.Time) (silent, returned []agent.Silence, err error) {
			*calls = append(*calls, before)
			return nil, nil, nil
		},
		Count: func(context.Context) (int64, error) { return 0, nil },
	}, calls, server
}

// untilJudged checks until agents can be judged.
func untilJudged(t *testing.T, s *Silences, calls *judged) observedEnd {
	t.Helper()
	var end observedEnd
	require.Eventually(t, func() bool {
		var err error
		end, err = s.check(t.Context(), end)
		return err == nil && !(*calls)[len(*calls)-1].IsZero() // on a busy machine, a check may take too long
	}, time.Minute, 10*time.Millisecond)
	return end
}

func TestNoAgentIsSilentAfterAnOutageUntilItCouldReport(t *testing.T) {
	t.Parallel()
	s, calls, server := newSilences(t, time.Second)
	end := untilJudged(t, s, calls)
	server.Down()
	end, err := s.check(t.Context(), end)
	require.Error(t, err)
	require.NoError(t, server.Restart())
	natstest.Reconnected(t, s.JetStream.Conn())
	*calls = nil
	reached := 0 // checks in succession
	require.Eventually(t, func() bool {
		if end, err = s.check(t.Context(), end); err != nil {
			reached = 0
			return false
		}
		reached++
		return reached == 2
	}, time.Minute, 10*time.Millisecond)
	for _, before := range *calls {
		require.Zero(t, before)
	}
	require.NotEmpty(t, *calls, "agents that returned are recorded")
}

func TestNoAgentIsSilentWhileItsReportsAreNotProcessed(t *testing.T) {
	t.Parallel()
	s, calls, _ := newSilences(t, time.Second)
	for range 2 {
		_, err := s.JetStream.Publish(t.Context(), topology.Cell("local").ObservedTick(7), nil)
		require.NoError(t, err)
	}
	end := untilJudged(t, s, calls)
	*calls = nil
	s.Processed = func(context.Context) (uint64, error) { return 1, nil }
	end, err := s.check(t.Context(), end)
	require.NoError(t, err)
	require.Empty(t, *calls)
	s.Processed = func(context.Context) (uint64, error) { return 2, nil }
	_, err = s.check(t.Context(), end)
	require.NoError(t, err)
	require.Len(t, *calls, 1)
	require.NotZero(t, (*calls)[0])
}
