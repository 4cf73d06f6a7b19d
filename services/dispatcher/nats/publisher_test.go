package nats_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	dispatchernats "lockstep.internal/services/dispatcher/nats"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// stream stores published messages, or is unavailable. It can lose the acknowledgement of a stored message.
type stream struct {
	mu          sync.Mutex
	unavailable bool
	lose        int
	stored      []string
	busy        map[string]bool
	pause       time.Duration
}

func (s *stream) PublishMsg(_ context.Context, m *nats.Msg, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	workspace := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	s.mu.Lock()
	if s.unavailable {
		s.mu.Unlock()
		return nil, errors.New("NATS is unavailable")
	}
	if s.busy[workspace] {
		s.mu.Unlock()
		panic("two results of one workspace under way at once")
	}
	s.busy[workspace] = true
	s.stored = append(s.stored, m.Header.Get("ce-id"))
	s.lose--
	lost := s.lose >= 0
	s.mu.Unlock()
	time.Sleep(s.pause)
	s.mu.Lock()
	delete(s.busy, workspace)
	s.mu.Unlock()
	if lost {
		return nil, context.DeadlineExceeded
	}
	return &jetstream.PubAck{}, nil
}

func (s *stream) setUnavailable(unavailable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unavailable = unavailable
}

func result(t *testing.T, workspace, kind string, n int) event.Event {
	t.Helper()
	e, err := event.New(event.Attributes{
		Type:    "dev.lockstep.applied." + kind + ".v1",
		Source:  "/lockstep/local/agents/7/dispatcher",
		Subject: workspace,
		ID:      fmt.Sprint(workspace, "/", kind, "/", n),
		Time:    time.Now(),
	}, map[string]any{})
	require.NoError(t, err)
	return e
}

func running(t *testing.T, s *stream) *dispatchernats.Publisher {
	t.Helper()
	s.busy = map[string]bool{}
	p := dispatchernats.NewPublisher(s, "local", 7, 0, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return p
}

func TestResultsAreInOrderPerWorkspaceAndBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		p := running(t, s)
		s.setUnavailable(true)
		for n := range 100 {
			for _, kind := range []string{"apply_failed", "terminating"} {
				p.Publish("a", result(t, "a", kind, n))
			}
		}
		p.Publish("a", result(t, "a", "applied", 1))
		p.Publish("a", result(t, "a", "apply_failed", 100))
		p.Publish("a", result(t, "a", "terminated", 1))
		time.Sleep(time.Hour)
		require.LessOrEqual(t, p.Waiting(), 4, "one of each kind")
		s.setUnavailable(false)
		require.NoError(t, p.Flush(t.Context()))
		require.Equal(t, []string{"a/terminating/99", "a/applied/1", "a/apply_failed/100", "a/terminated/1"}, s.stored)
	})
}

func TestLostAcknowledgementRepeatsTheResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stream{lose: 2}
		p := running(t, s)
		p.Publish("a", result(t, "a", "applied", 1))
		require.NoError(t, p.Flush(t.Context()))
		require.Equal(t, []string{"a/applied/1", "a/applied/1", "a/applied/1"}, s.stored)
	})
}

func TestWorkspacesArePublishedIndependently(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stream{pause: time.Second}
		p := running(t, s)
		start := time.Now()
		for n := range 3 {
			for w := range 8 {
				p.Publish(fmt.Sprint(w), result(t, fmt.Sprint(w), []string{"applied", "apply_failed", "terminated"}[n], n))
			}
		}
		require.NoError(t, p.Flush(t.Context()))
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Len(t, s.stored, 24)
	})
}

func TestFlushEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		p := running(t, s)
		s.setUnavailable(true)
		p.Publish("a", result(t, "a", "applied", 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, p.Flush(ctx), context.DeadlineExceeded)
		require.Equal(t, 1, p.Waiting())
	})
}
