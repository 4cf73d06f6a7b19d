package sink_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/sink"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	cell = topology.Cell("local")
	soon = time.Minute
)

// fixture is the streams of a cell and the database of the service.
type fixture struct {
	t      *testing.T
	server *natsd.Server
	js     jetstream.JetStream
	pool   *pgxpool.Pool
	next   map[string]int
	// metrics of each replica.
	metrics map[*sink.Set]*prometheus.Registry
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		t: t, server: natstest.Server(t), next: map[string]int{}, metrics: map[*sink.Set]*prometheus.Registry{},
	}
	f.js = natstest.JetStream(t, f.server)
	require.NoError(t, topology.Ensure(natstest.Context(t), f.js, cell, topology.Options{StorageBytes: 1 << 30}))
	pool, err := postgres.Connect(t.Context(), postgres.Config{
		URL:    pgtest.Database(t),
		Schema: "deploys",
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	f.pool = pool
	migrations, err := sink.Migrations()
	require.NoError(t, err)
	require.NoError(t, postgres.Migrate(t.Context(), pool, slog.New(slog.DiscardHandler), migrations))
	return f
}

// message returns a fact as DEPLOYS stores it.
func message(t testing.TB, id string, fact events.DeployFact) *nats.Msg {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"context":               map[string]any{"id": id},
		"subject":               map[string]any{},
		"customData":            fact,
		"customDataContentType": "application/json",
	})
	require.NoError(t, err)
	w := fact.Workload
	return &nats.Msg{
		Subject: cell.Deploy(w.ClusterUID, w.Namespace, w.Kind, w.Name, string(fact.Fact)),
		Data:    data,
		Header: nats.Header{
			"ce-specversion":     {"1.0"},
			"ce-id":              {id},
			"ce-type":            {"dev.cdeventsx.lockstep-rollout." + string(fact.Fact) + ".0.1.0"},
			"ce-source":          {"/lockstep/local/deploys"},
			"ce-datacontenttype": {"application/json"},
		},
	}
}

func newFact(workload string, sequence int, name events.Fact) events.DeployFact {
	at := time.Date(2026, 5, 1, 10, 0, sequence, 0, time.UTC)
	return events.DeployFact{
		Fact: name, Sequence: sequence, OccurredAt: at, ObservedAt: at, Provenance: events.ProvenanceObserved,
		Workload: events.Workload{ClusterUID: "c1", Namespace: "shop", Kind: "deployment", Name: workload},
		Rollout:  &events.Rollout{ID: "c1/" + workload + "/1", Revision: 1, Change: "updated"},
	}
}

// publish publishes the next fact of the workload; its id is <workload>/<number>.
func (f *fixture) publish(workload string, name events.Fact) {
	f.t.Helper()
	f.next[workload]++
	n := f.next[workload]
	id := workload + "/" + strconv.Itoa(n)
	_, err := f.js.PublishMsg(f.t.Context(), message(f.t, id, newFact(workload, n, name)))
	require.NoError(f.t, err)
}

// replica starts a set. It runs until the returned function is called or the test ends.
func (f *fixture) replica(entries ...sink.Entry) (*sink.Set, func()) {
	f.t.Helper()
	for i := range entries {
		if entries[i].Retry == (sink.Retry{}) {
			entries[i].Retry = sink.Retry{Min: time.Millisecond, Max: 10 * time.Millisecond}
		}
	}
	registry := prometheus.NewRegistry()
	metrics, err := sink.NewMetrics(registry)
	require.NoError(f.t, err)
	cfg := sink.Config{
		Metrics:      metrics,
		Cell:         cell,
		Pool:         f.pool,
		JetStream:    natstest.JetStream(f.t, f.server),
		Logger:       slog.New(slog.DiscardHandler),
		Entries:      entries,
		LockInterval: time.Millisecond,
		AckWait:      2 * time.Second,
		SaveInterval: 20 * time.Millisecond,
		StaleAfter:   time.Nanosecond,
	}
	set, err := sink.New(cfg)
	require.NoError(f.t, err)
	f.metrics[set] = registry
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- set.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(f.t, <-ended)
	})
	f.t.Cleanup(stop)
	return set, stop
}

// awaitStarted waits until the sink has both consumers.
func (f *fixture) awaitStarted(set *sink.Set) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		list, err := set.List(context.Background())
		return err == nil && len(list) > 0 && list[0].Next > 0
	}, soon, 5*time.Millisecond)
	// The consumer on SINKS is created last.
	require.Eventually(f.t, func() bool {
		_, err := f.js.Consumer(context.Background(), topology.StreamSinks, "sink-test")
		return err == nil
	}, soon, 5*time.Millisecond)
}

// awaitWaiting waits until the replica has n unfinished facts in its queues.
func (f *fixture) awaitWaiting(set *sink.Set, n int) {
	f.t.Helper()
	f.eventually("facts wait in the queues", func() bool {
		families, err := f.metrics[set].Gather()
		require.NoError(f.t, err)
		for _, family := range families {
			if family.GetName() == "lockstep_sink_waiting" {
				return int(family.GetMetric()[0].GetGauge().GetValue()) == n
			}
		}
		return false
	})
}

// awaitFinished waits until the sink has finished all facts.
func (f *fixture) awaitFinished(set *sink.Set) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		stream, err := f.js.Stream(context.Background(), topology.StreamDeploys)
		if err != nil {
			return false
		}
		list, err := set.List(context.Background())
		return err == nil && list[0].Next == stream.CachedInfo().State.LastSeq+1 && list[0].Pending == 0
	}, soon, 5*time.Millisecond)
}

// recorder is a sink that records deliveries and returns the errors that the test configures.
type recorder struct {
	traits  sink.Traits
	respond func(sink.Delivery) error
	limit   func(context.Context) error

	mu         sync.Mutex
	got        []string
	busy       map[string]bool
	concurrent int // concurrent deliveries of one thread
}

func (r *recorder) Traits() sink.Traits { return r.traits }

func (r *recorder) Thread(f events.DeployFact) (string, bool) {
	return f.Workload.Name, f.Fact != events.FactGap
}

func (r *recorder) AwaitLimit(ctx context.Context) error {
	if r.limit == nil {
		return nil
	}
	return r.limit(ctx)
}

func (r *recorder) Deliver(_ context.Context, d sink.Delivery) error {
	r.mu.Lock()
	if r.busy == nil {
		r.busy = map[string]bool{}
	}
	if r.busy[d.Thread] {
		r.concurrent++
	}
	r.busy[d.Thread] = true
	r.mu.Unlock()
	var err error
	if r.respond != nil {
		err = r.respond(d)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy[d.Thread] = false
	if err == nil {
		text := d.Key
		for range d.Earlier {
			text += "+"
		}
		if d.Requested {
			text += "!"
		}
		r.got = append(r.got, text)
	}
	return err
}

func (r *recorder) delivered() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.got...)
}

// of returns the deliveries of one workload.
func (r *recorder) of(workload string) []string {
	var list []string
	for _, key := range r.delivered() {
		if len(key) > len(workload) && key[:len(workload)+1] == workload+"/" {
			list = append(list, key)
		}
	}
	return list
}

func (f *fixture) eventually(condition string, holds func() bool) {
	f.t.Helper()
	require.Eventually(f.t, holds, soon, 5*time.Millisecond, condition)
}

func ids(workload string, from, to int) []string {
	var list []string
	for i := from; i <= to; i++ {
		list = append(list, fmt.Sprintf("%s/%d", workload, i))
	}
	return list
}

var discard = slog.New(slog.DiscardHandler)

// deadLetters returns the messages on DEAD.
func (f *fixture) deadLetters() []*jetstream.RawStreamMsg {
	f.t.Helper()
	stream, err := f.js.Stream(f.t.Context(), topology.StreamDead)
	require.NoError(f.t, err)
	var messages []*jetstream.RawStreamMsg
	for sequence := uint64(1); sequence <= stream.CachedInfo().State.LastSeq; sequence++ {
		m, err := stream.GetMsg(f.t.Context(), sequence)
		require.NoError(f.t, err)
		messages = append(messages, m)
	}
	return messages
}
