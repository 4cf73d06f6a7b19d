package dispatcher

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
	"lockstep.internal/services/dispatcher/queue"
)

// played is a cluster in which workspaces do as their names say.
type played struct {
	mu        sync.Mutex
	attempts  map[string]int
	remaining map[string][]desired.Reference
	repairs   map[string]int
	drifted   map[string][]desired.Reference
	failing   *failure.Failure // repairs
}

func (p *played) Apply(ctx context.Context, w desired.Workspace, _ kube.Secrets) (kube.Applied, error) {
	p.mu.Lock()
	p.attempts[w.ID]++
	p.mu.Unlock()
	switch w.Name {
	case "hangs":
		<-ctx.Done()
		return kube.Applied{}, failure.Explain(ctx.Err(), desired.Reference{})
	case "refused":
		return kube.Applied{}, failure.Refusal(failure.Superseded, nil, "no")
	case "fails":
		return kube.Applied{}, failure.New(failure.QuotaExceeded, nil, "no")
	default:
		return kube.Applied{}, nil
	}
}

// Repair finds what was drifted since the last time.
func (p *played) Repair(ctx context.Context, w desired.Workspace, secrets kube.Secrets) (kube.Applied, error) {
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

func (p *played) fail(f *failure.Failure) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = f
}

func (p *played) drift(id string, objects ...desired.Reference) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drifted[id] = objects
}

func (p *played) repaired(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.repairs[id]
}

func (p *played) Terminate(_ context.Context, w desired.Workspace) ([]desired.Reference, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.remaining[w.ID], nil
}

func (p *played) remain(id string, remaining ...desired.Reference) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remaining[id] = remaining
}

// told keeps results and when they were told.
type told struct {
	mu      sync.Mutex
	results []event.Event
	at      []time.Time
}

func (o *told) Publish(_ string, result event.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.results = append(o.results, result)
	o.at = append(o.at, time.Now())
}

func (o *told) of(workspace string) ([]string, []time.Time) {
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

func (o *told) last(workspace string) event.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, result := range slices.Backward(o.results) {
		if result.Subject() == workspace {
			return result
		}
	}
	return event.Event{}
}

// running works in the test's bubble until the function is called, or the test ends.
func running(t *testing.T) (*reconciler, *played, *told, context.CancelFunc) {
	t.Helper()
	m, err := newMetrics(prometheus.NewRegistry())
	require.NoError(t, err)
	cluster, published := &played{
		attempts:  map[string]int{},
		remaining: map[string][]desired.Reference{},
		repairs:   map[string]int{},
		drifted:   map[string][]desired.Reference{},
	}, &told{}
	r := &reconciler{
		cell:      "local",
		queue:     queue.New[*job](queue.Limits{Retries: 4, Repairs: 1, RepairPause: time.Second}),
		cluster:   cluster,
		publisher: published,
		results:   results{source: "/lockstep/local/agents/7/dispatcher", run: "r"},
		retry:     retry.Policy{Min: time.Second, Max: 5 * time.Minute},
		poll:      retry.Policy{Min: time.Second, Max: time.Minute},
		workers:   8,
		timeout:   time.Minute,
		slowAfter: 2 * time.Second,
		logger:    slog.New(slog.DiscardHandler),
		tracer:    noop.NewTracerProvider().Tracer(""),
		metrics:   m,
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.run(ctx, ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return r, cluster, published, cancel
}

func (r *reconciler) put(id, name string, target events.DesiredTarget) {
	r.queue.Put(id, 1, &job{workspace: desired.Workspace{ID: id, Name: name, Revision: 1, Target: target}})
}

func TestHangingWorkspacesDoNotDelayAHealthyOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _, results, _ := running(t)
		for i := range 40 {
			r.put(fmt.Sprint("sick", i), "hangs", events.DesiredTargetRunning)
		}
		time.Sleep(11 * time.Second) // five times eight attempts are found to be slow by then
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
		r, cluster, results, _ := running(t)
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
		require.Equal(t, []string{"x/1/apply_failed/1/r"}, kinds, "a refusal is told once")
		require.Equal(t, 1, cluster.attempts["x"])
	})
}

func TestTerminationIsReportedOnChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, cluster, results, _ := running(t)
		namespace, volume := desired.NamespaceReference(
			"ws-w",
		), desired.Reference{ApiVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "ws-w", Name: "data"}
		cluster.remain("w", volume, namespace)
		r.put("w", "", events.DesiredTargetTerminated)
		time.Sleep(10 * time.Minute)
		kinds, _ := results.of("w")
		require.Equal(t, []string{"w/1/terminating/1/r"}, kinds, "what is stuck is not told again and again")
		cluster.remain("w", namespace)
		time.Sleep(2 * time.Minute)
		cluster.remain("w")
		start := time.Now()
		r.queue.Wake("w")
		synctest.Wait()
		kinds, at := results.of("w")
		require.Equal(t, []string{"w/1/terminating/1/r", "w/1/terminating/2/r", "w/1/terminated/1/r"}, kinds)
		require.Equal(t, start, at[2], "a deletion that is seen is not waited for")
	})
}

func TestEndOfTheSessionIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, cluster, results, stop := running(t)
		r.put("w", "hangs", events.DesiredTargetRunning)
		synctest.Wait()
		stop()
		synctest.Wait()
		require.Equal(t, 1, cluster.attempts["w"])
		kinds, _ := results.of("w")
		require.Empty(t, kinds)
	})
}
