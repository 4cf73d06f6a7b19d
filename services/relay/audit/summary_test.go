package audit_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/audit"
)

// send records an ended request as a handler does.
func send(t *testing.T, l *audit.Log, r audit.Record) {
	t.Helper()
	r.AgentID, r.Phase, r.StartedAt = 7, audit.Ended, time.Now()
	if !l.Allow(r, 1) {
		l.Sum(r)
		return
	}
	require.NoError(t, l.Reserve(t.Context(), 1))
	l.Add(r)
}

func newBudgetLog(p *fakePublisher) *audit.Log {
	return audit.NewLog(audit.Config{Publish: p.publish, Burst: 10, PerMinute: 6})
}

func TestRequestsAboveTheBudgetAreSummedUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &fakePublisher{}
		l := newBudgetLog(p)
		stop := run(l)
		pods := audit.Record{
			UserID: 5, Protocol: audit.Kubernetes, Target: "kubernetes", Verb: "get", Status: 200, BytesReceived: 2,
			Resource: audit.Resource{Version: "v1", Resource: "pods", Namespace: "a", Name: "hidden"}, Error: "hidden",
		}
		nodes := pods
		nodes.Resource.Resource, nodes.Status = "nodes", 403
		for i := range 1010 {
			send(t, l, pods)
			if i%2 == 0 {
				send(t, l, nodes)
			}
		}
		other := audit.Record{UserID: 6, Protocol: audit.HTTP, Target: "shop", Path: "/a"}
		send(t, l, other)
		time.Sleep(time.Minute + 2*time.Second) // by the clock of synctest
		synctest.Wait()
		counts, single := map[string]int{}, 0
		for _, r := range p.records(7) {
			if r.Count == 0 {
				single++
				continue
			}
			require.NotEmpty(t, r.RequestID)
			require.Empty(t, r.Resource.Name+r.Path+r.Error)
			require.Equal(t, int64(2*r.Count), r.BytesReceived)
			counts[r.Resource.Resource] += r.Count
		}
		require.Equal(t, 10+1, single, "the budget of one caller, and the request of another")
		require.Equal(t, 1010+505-10, counts["pods"]+counts["nodes"])
		require.Len(t, p.records(7), 10+1+2)

		// The budget grows again.
		before := len(p.records(7))
		for range 20 {
			send(t, l, pods)
		}
		require.NoError(t, stop(t.Context()))
		require.Len(t, p.records(7), before+6+1)
		require.Zero(t, l.Unpublished())
	})
}

func TestKindsOfSummariesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &fakePublisher{}
		l := newBudgetLog(p)
		stop := run(l)
		for i := range 10_000 {
			send(t, l, audit.Record{UserID: 5, Protocol: audit.HTTP, Target: fmt.Sprint("invented", i), Status: i % 3})
		}
		require.NoError(t, stop(t.Context()))
		total := 0
		for _, r := range p.records(7) {
			total += max(1, r.Count)
		}
		require.Equal(t, 10_000, total)
		require.LessOrEqual(t, len(p.records(7)), 10+20+1)
	})
}

func TestServicesWithoutRuleShareABudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &fakePublisher{}
		l := newBudgetLog(p)
		stop := run(l)
		for i := range 1000 {
			send(t, l, audit.Record{
				Subject: fmt.Sprint("invented", i), WithoutRule: true, Protocol: audit.HTTP, Target: "shop", Status: 403,
			})
		}
		send(t, l, audit.Record{Subject: "ci", Protocol: audit.HTTP, Target: "shop"})
		require.NoError(t, stop(t.Context()))
		records := p.records(7)
		require.Len(t, records, 10+1+1, "the budget, a service with a rule, and a summary")
		require.Equal(t, "invented9", records[9].Subject)
		require.Equal(t, "ci", records[10].Subject)
		require.Equal(t, 1000-10, records[11].Count)
		require.Empty(t, records[11].Subject)
	})
}

func TestLongRecordsTakeMoreOfTheBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &fakePublisher{}
		l := newBudgetLog(p)
		stop := run(l)
		long := strings.Repeat("x", 300)
		escaped := strings.Repeat("\x01", 253) // six bytes each
		for range 100 {
			send(t, l, audit.Record{UserID: 5, Protocol: audit.HTTP, Target: "shop", Path: strings.Repeat("x", 1<<16)})
			send(t, l, audit.Record{UserID: 6, Protocol: audit.HTTP, Target: "shop", Path: long})
			send(t, l, audit.Record{UserID: 7, Protocol: audit.Kubernetes, Target: "kubernetes", Resource: audit.Resource{
				Resource: escaped, Namespace: escaped, Name: escaped,
			}})
		}
		require.NoError(t, stop(t.Context()))
		single := map[int64]int{}
		for _, r := range p.records(7) {
			if r.Count == 0 {
				single[r.UserID]++
			}
			require.True(t, r.Count == 0 || r.Resource == audit.Resource{}, "a summary has no long names")
		}
		require.Equal(t, map[int64]int{5: 3, 6: 10, 7: 1}, single)
	})
}
