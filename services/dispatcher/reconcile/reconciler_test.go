package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
	"lockstep.internal/services/dispatcher/kube"
	"lockstep.internal/services/dispatcher/metrics"
	"lockstep.internal/services/dispatcher/queue"
)

// fakeCluster is a cluster whose behaviour depends on the workspace's name.
type fakeCluster struct {
	mu        sync.Mutex
	attempts  map[string]int
	remaining map[string]kube.Remaining
	repairs   map[string]int
	drifted   map[string][]desired.Reference
	failing   *failure.Failure // error of repairs
}

func (p *fakeCluster) Apply(ctx context.Context, w desired.Workspace, _ kube.SecretSource) (kube.Applied, error) {
	p.mu.Lock()
	p.attempts[w.ID]++
	p.mu.Unlock()
	switch w.Name {
	case "hangs":
		<-ctx.Done()
		return kube.Applied{}, failure.Explain(ctx.Err(), desired.Reference{})
	case "refused":
		return kube.Applied{}, failure.NewFinal(failure.Superseded, nil, "no")
	case "fails":
		return kube.Applied{}, failure.New(failure.QuotaExceeded, nil, "no")
	default:
		return kube.Applied{}, nil
	}
}

// Repair returns the objects that drifted since the last repair.
func (p *fakeCluster) Repair(
	ctx context.Context, w desired.Workspace, secrets kube.SecretSource,
) (kube.Applied, error) {
	p.mu.Lock()
	p.repairs[w.ID]++
	drifted := p.drifted[w.ID]
	delete(p.drifted, w.ID)
	failing := p.failing
	p.mu.Unlock()
	if failing != nil {
		return kube.Applied{}, failing
	}
	return kube.Applied{Repaired: drifted}, nil
}

func (p *fakeCluster) fail(f *failure.Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = f
}

func (p *fakeCluster) drift(id string, objects ...desired.Reference) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drifted[id] = objects
}

func (p *fakeCluster) repaired(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.repairs[id]
}

func (p *fakeCluster) Terminate(_ context.Context, w desired.Workspace) (kube.Remaining, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.remaining[w.ID], nil
}

func (p *fakeCluster) remain(id string, remaining ...desired.Reference) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remaining[id] = kube.Remaining{Objects: remaining}
}

// recorder records the published results with their times.
type recorder struct {
	mu      sync.Mutex
	results []event.Event
	at      []time.Time
}

func (o *recorder) Publish(_ string, result event.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.results = append(o.results, result)
	o.at = append(o.at, time.Now())
}

func (o *recorder) of(workspace string) ([]string, []time.Time) {
	var kinds []string
	var at []time.Time
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, result := range o.results {
		if result.Subject() == workspace {
			kinds = append(kinds, result.ID())
			at = append(at, o.at[i])
		}
	}
	return kinds, at
}

func (o *recorder) last(workspace string) event.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, result := range slices.Backward(o.results) {
		if result.Subject() == workspace {
			return result
		}
	}
	return event.Event{}
}

// startReconciler runs a reconciler in the synctest bubble until the function is called, or the test ends.
func startReconciler(t *testing.T) (*Reconciler, *fakeCluster, *recorder, context.CancelFunc) {
	t.Helper()
	m, err := metrics.New(prometheus.NewRegistry())
	require.NoError(t, err)
	cluster, published := &fakeCluster{
		attempts:  map[string]int{},
		remaining: map[string]kube.Remaining{},
		repairs:   map[string]int{},
		drifted:   map[string][]desired.Reference{},
	}, &recorder{}
	r := &Reconciler{
		Cell:      "local",
		Queue:     queue.New[*Item](queue.Limits{Retries: 4, Repairs: 1, RepairPause: time.Second}),
		Cluster:   cluster,
		Publisher: published,
		Results:   Results{Source: "/lockstep/local/agents/7/dispatcher", SessionID: "r"},
		Retry:     retry.Policy{Min: time.Second, Max: 5 * time.Minute},
		Poll:      retry.Policy{Min: time.Second, Max: time.Minute},
		Workers:   8,
		Timeout:   time.Minute,
		SlowAfter: 2 * time.Second,
		Logger:    slog.New(slog.DiscardHandler),
		Tracer:    noop.NewTracerProvider().Tracer(""),
		Metrics:   m,
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx, ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return r, cluster, published, cancel
}

func (r *Reconciler) put(id, name string, target events.DesiredTarget) {
	r.Queue.Put(id, 1, &Item{workspace: desired.Workspace{ID: id, Name: name, Revision: 1, Target: target}})
}

func TestHangingWorkspacesDoNotDelayAHealthyOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _, results, _ := startReconciler(t)
		for i := range 40 {
			r.put(fmt.Sprint("sick", i), "hangs", events.DesiredTargetRunning)
		}
		time.Sleep(11 * time.Second) // by then 40 attempts have moved to spare slots
		for i := range 100 {
			id := fmt.Sprint("healthy", i)
			start := time.Now()
			r.put(id, "", events.DesiredTargetRunning)
			synctest.Wait()
			kinds, at := results.of(id)
			require.Equal(t, []string{id + "/1/applied/1/r"}, kinds)
			require.Equal(t, start, at[0])
			time.Sleep(3 * time.Second)
		}
	})
}

func TestFailuresAreRetriedWithGrowingPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, cluster, results, _ := startReconciler(t)
		r.put("w", "fails", events.DesiredTargetRunning)
		r.put("x", "refused", events.DesiredTargetRunning)
		time.Sleep(24 * time.Hour)
		_, at := results.of("w")
		pause := time.Second
		for i := 1; i < len(at); i++ {
			got := at[i].Sub(at[i-1])
			require.LessOrEqual(t, got, pause)
			require.GreaterOrEqual(t, got, pause/2)
			pause = min(2*pause, 5*time.Minute)
		}
		require.Greater(t, len(at), 24*60/5)
		kinds, _ := results.of("x")
		require.Equal(t, []string{"x/1/apply_failed/1/r"}, kinds, "a rejection is published once")
		require.Equal(t, 1, cluster.attempts["x"])
	})
}

func TestTerminationIsReportedOnChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, cluster, results, _ := startReconciler(t)
		namespace, volume := desired.NamespaceReference(
			"ws-w",
		), desired.Reference{ApiVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ws-w", Name: "data"}
		cluster.remain("w", volume, namespace)
		r.put("w", "", events.DesiredTargetTerminated)
		time.Sleep(10 * time.Minute)
		kinds, _ := results.of("w")
		require.Equal(t, []string{"w/1/terminating/1/r"}, kinds, "an unchanged list of remaining objects is published once")
		cluster.remain("w", namespace)
		time.Sleep(2 * time.Minute)
		cluster.remain("w")
		start := time.Now()
		r.Queue.Wake("w")
		synctest.Wait()
		kinds, at := results.of("w")
		require.Equal(t, []string{"w/1/terminating/1/r", "w/1/terminating/2/r", "w/1/terminated/1/r"}, kinds)
		require.Equal(t, start, at[2], "Wake ends the poll interval")
	})
}

func TestLostLeadershipReportsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, cluster, results, stop := startReconciler(t)
		r.put("w", "hangs", events.DesiredTargetRunning)
		synctest.Wait()
		stop()
		synctest.Wait()
		require.Equal(t, 1, cluster.attempts["w"])
		kinds, _ := results.of("w")
		require.Empty(t, kinds)
	})
}
