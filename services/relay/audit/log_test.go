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

// fakePublisher stores batches. It can fail.
type fakePublisher struct {
	mu        sync.Mutex
	fails     bool
	losesAcks bool // stores the batch, but returns an error
	stored    []audit.Batch
}

func (p *fakePublisher) publish(ctx context.Context, b audit.Batch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails {
		return errors.New("NATS is unavailable")
	}
	p.stored = append(p.stored, b)
	if p.losesAcks {
		return errors.New("no acknowledgement")
	}
	return ctx.Err()
}

func (p *fakePublisher) set(fails, losesAcks bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fails, p.losesAcks = fails, losesAcks
}

func (p *fakePublisher) ids() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := map[string]int{}
	for _, b := range p.stored {
		ids[b.ID]++
	}
	return ids
}

// records returns the stored records, without duplicate batches.
func (p *fakePublisher) records(agent int64) (out []audit.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := map[string]bool{}
	for _, b := range p.stored {
		if b.AgentID == agent && !seen[b.ID] {
			out = append(out, b.Records...)
		}
		seen[b.ID] = true
	}
	return out
}

func newLog(p *fakePublisher, capacity int) *audit.Log {
	return audit.NewLog(audit.Config{Publish: p.publish, Capacity: capacity, Logger: slog.New(slog.DiscardHandler)})
}

func add(t *testing.T, l *audit.Log, n int) {
	t.Helper()
	for i := range n {
		require.NoError(t, l.Reserve(t.Context(), 1))
		l.Add(audit.Record{AgentID: 7, Status: i})
	}
}

// run runs the log in the background. stop publishes the rest and returns the error.
func run(l *audit.Log) (stop func(timeoutCtx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	drainCtx, endDrain := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx, drainCtx) }()
	return func(timeoutCtx context.Context) error {
		defer endDrain()
		defer context.AfterFunc(timeoutCtx, endDrain)()
		cancel()
		return <-ended
	}
}

func TestRecordsAreBatchedPerAgentInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &fakePublisher{}
		l := newLog(p, 0)
		stop := run(l)
		for i := range 1200 {
			require.NoError(t, l.Reserve(t.Context(), 1))
			l.Add(audit.Record{AgentID: int64(7 + i%2), Status: i})
		}
		time.Sleep(2 * time.Second) // by the clock of synctest
		synctest.Wait()
		require.Zero(t, l.Unpublished())
		for _, agent := range []int64{7, 8} {
			records := p.records(agent)
			require.Len(t, records, 600)
			for i, r := range records {
				require.Equal(t, 2*i+int(agent-7), r.Status)
			}
		}
		for _, b := range p.stored {
			require.LessOrEqual(t, len(b.Records), audit.MaxBatch)
			require.NotEmpty(t, b.ID)
		}
		require.NoError(t, stop(t.Context()))
	})
}

func TestRecordIsPublishedWithinInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &fakePublisher{}
		l := newLog(p, 0)
		stop := run(l)
		add(t, l, 1)
		require.Equal(t, 1, l.Unpublished())
		time.Sleep(1001 * time.Millisecond) // by the clock of synctest
		synctest.Wait()
		require.Len(t, p.records(7), 1)
		add(t, l, audit.MaxBatch) // a full batch is published at once
		synctest.Wait()
		require.Len(t, p.records(7), 1+audit.MaxBatch)
		require.NoError(t, stop(t.Context()))
	})
}

func TestReserveBlocksWithoutCapacity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &fakePublisher{}
		p.set(true, false)
		l := newLog(p, 10)
		stop := run(l)
		add(t, l, 9)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.Equal(t, errcode.Unavailable, fault.CodeOf(l.Reserve(ctx, 2)), "there is capacity for one")
		require.Equal(t, 9, l.Unpublished())
		l.Release(0)
		add(t, l, 1)
		reserved := make(chan error)
		go func() { reserved <- l.Reserve(t.Context(), 2) }()
		synctest.Wait()
		select {
		case <-reserved:
			require.Fail(t, "there is no capacity")
		default:
		}
		p.set(false, false)
		require.NoError(t, <-reserved)
		l.Release(2)
		require.NoError(t, stop(t.Context()))
		require.Len(t, p.records(7), 10)
	})
}

// A batch is retried with the same id after a lost acknowledgement, also during a drain.
func TestBatchKeepsItsIDUntilItIsAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &fakePublisher{}
		p.set(false, true)
		l := newLog(p, 0)
		stop := run(l)
		add(t, l, 3)
		time.Sleep(time.Minute) // by the clock of synctest
		add(t, l, 2)
		go func() {
			time.Sleep(time.Minute) // by the clock of synctest
			p.set(false, false)
		}()
		require.NoError(t, stop(t.Context()))
		require.Len(t, p.ids(), 2)
		require.Len(t, p.records(7), 5)
		for id, n := range p.ids() {
			if n > 1 {
				require.Equal(t, id, p.stored[0].ID, "the first batch was retried")
			}
		}
		require.Zero(t, l.Unpublished())
	})
}

func TestRunReturnsErrorWhenRecordsAreLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &fakePublisher{}
		p.set(true, false)
		l := newLog(p, 0)
		stop := run(l)
		add(t, l, 3)
		timeoutCtx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorContains(t, stop(timeoutCtx), "publish audit records")
		require.Equal(t, 3, l.Unpublished())
		p.set(false, false)
		require.NoError(t, run(l)(t.Context()), "a second Run publishes the rest")
		require.Len(t, p.records(7), 3)
	})
}

func TestLongFieldsAreTruncated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &fakePublisher{}
		l := newLog(p, 0)
		stop := run(l)
		long := strings.Repeat("X", 1<<16)
		require.NoError(t, l.Reserve(t.Context(), 1))
		l.Add(audit.Record{AgentID: 7, Method: long, Verb: long, Path: long, Error: long, Subject: long})
		require.NoError(t, stop(t.Context()))
		r := p.records(7)[0]
		require.Less(t, len(r.Method)+len(r.Verb)+len(r.Path)+len(r.Error)+len(r.Subject), 2<<10)
	})
}
