package audit_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/audit"
)

// stream takes batches; it may be away.
type stream struct {
	mu    sync.Mutex
	away  bool
	lost  bool // it takes a batch and cannot say so
	taken []audit.Batch
	tried []string
}

func (s *stream) publish(ctx context.Context, b audit.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried = append(s.tried, b.ID)
	if s.away {
		return errors.New("away")
	}
	s.taken = append(s.taken, b)
	if s.lost {
		return errors.New("no answer")
	}
	return ctx.Err()
}

func (s *stream) set(away, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away, s.lost = away, lost
}

func (s *stream) ids() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]int{}
	for _, b := range s.taken {
		ids[b.ID]++
	}
	return ids
}

// records in the order in which they came, each batch once.
func (s *stream) records(agent int64) (out []audit.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, b := range s.taken {
		if b.AgentID == agent && !seen[b.ID] {
			out = append(out, b.Records...)
		}
		seen[b.ID] = true
	}
	return out
}

func newLog(s *stream, room int) *audit.Log {
	return audit.NewLog(audit.Config{Publish: s.publish, Capacity: room, Logger: slog.New(slog.DiscardHandler)})
}

func add(t *testing.T, l *audit.Log, n int) {
	t.Helper()
	for i := range n {
		require.NoError(t, l.Reserve(t.Context(), 1))
		l.Add(audit.Record{AgentID: 7, Status: i})
	}
}

// run has the log published until stop is called, which waits for the rest.
func run(l *audit.Log) (stop func(finish context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	finishing, finished := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx, finishing) }()
	return func(finish context.Context) error {
		defer finished()
		defer context.AfterFunc(finish, finished)()
		cancel()
		return <-ended
	}
}

func TestRecordsGoInBatchesOfTheirAgentInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		l := newLog(s, 0)
		stop := run(l)
		for i := range 1200 {
			require.NoError(t, l.Reserve(t.Context(), 1))
			l.Add(audit.Record{AgentID: int64(7 + i%2), Status: i})
		}
		time.Sleep(2 * time.Second) // of the bubble's clock
		synctest.Wait()
		require.Zero(t, l.Unpublished())
		for _, agent := range []int64{7, 8} {
			records := s.records(agent)
			require.Len(t, records, 600)
			for i, r := range records {
				require.Equal(t, 2*i+int(agent-7), r.Status)
			}
		}
		for _, b := range s.taken {
			require.LessOrEqual(t, len(b.Records), audit.MaxBatch)
			require.NotEmpty(t, b.ID)
		}
		require.NoError(t, stop(t.Context()))
	})
}

func TestARecordDoesNotWaitForOthersForLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		l := newLog(s, 0)
		stop := run(l)
		add(t, l, 1)
		require.Equal(t, 1, l.Unpublished())
		time.Sleep(1001 * time.Millisecond) // of the bubble's clock
		synctest.Wait()
		require.Len(t, s.records(7), 1)
		add(t, l, audit.MaxBatch) // and a whole batch not at all
		synctest.Wait()
		require.Len(t, s.records(7), 1+audit.MaxBatch)
		require.NoError(t, stop(t.Context()))
	})
}

func TestRequestsWaitWhileTheirRecordsHaveNoRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		s.set(true, false)
		l := newLog(s, 10)
		stop := run(l)
		add(t, l, 9)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.Equal(t, errcode.Unavailable, fault.CodeOf(l.Reserve(ctx, 2)), "two do not fit")
		require.Equal(t, 9, l.Unpublished())
		l.Release(0)
		add(t, l, 1)
		let := make(chan error)
		go func() { let <- l.Reserve(t.Context(), 2) }()
		synctest.Wait()
		select {
		case <-let:
			require.Fail(t, "there is no room")
		default:
		}
		s.set(false, false)
		require.NoError(t, <-let)
		l.Release(2)
		require.NoError(t, stop(t.Context()))
		require.Len(t, s.records(7), 10)
	})
}

// A batch whose acknowledgement was lost has the same id again, also when the relay is drained meanwhile.
func TestABatchKeepsItsIDUntilItIsAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		s.set(false, true)
		l := newLog(s, 0)
		stop := run(l)
		add(t, l, 3)
		time.Sleep(time.Minute) // of the bubble's clock
		add(t, l, 2)
		go func() {
			time.Sleep(time.Minute) // of the bubble's clock
			s.set(false, false)
		}()
		require.NoError(t, stop(t.Context()))
		require.Len(t, s.ids(), 2)
		require.Len(t, s.records(7), 5)
		for id, n := range s.ids() {
			if n > 1 {
				require.Equal(t, id, s.taken[0].ID, "the first batch was tried again and again")
			}
		}
		require.Zero(t, l.Unpublished())
	})
}

func TestWhatCannotBePublishedInTimeIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		s.set(true, false)
		l := newLog(s, 0)
		stop := run(l)
		add(t, l, 3)
		finish, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorContains(t, stop(finish), "publish audit records")
		require.Equal(t, 3, l.Unpublished())
		s.set(false, false)
		require.NoError(t, run(l)(t.Context()), "who runs it again loses nothing")
		require.Len(t, s.records(7), 3)
	})
}

func TestWhatACallerMadeUpIsCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stream{}
		l := newLog(s, 0)
		stop := run(l)
		long := strings.Repeat("X", 1<<16)
		require.NoError(t, l.Reserve(t.Context(), 1))
		l.Add(audit.Record{AgentID: 7, Method: long, Verb: long, Path: long, Error: long, Subject: long})
		require.NoError(t, stop(t.Context()))
		r := s.records(7)[0]
		require.Less(t, len(r.Method)+len(r.Verb)+len(r.Path)+len(r.Error)+len(r.Subject), 2<<10)
	})
}
