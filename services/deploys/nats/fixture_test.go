package nats_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/agents"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/metrics"
	"lockstep.internal/services/deploys/nats"
	store "lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/publish"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	cell = topology.Cell("local")
	// soon is the maximum wait for a condition.
	soon  = time.Minute
	label = "lockstep.dev/deploy-group"
)

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

// fixture is the database and the streams of a deploys service.
type fixture struct {
	t      testing.TB
	pool   *pgxpool.Pool
	server *natsd.Server
	js     jetstream.JetStream
	agents *fakeDirectory
	// limits of each agent; the default if empty.
	limits  agents.Rows
	metrics *metrics.Metrics
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	w := &fixture{t: tb, server: natstest.Server(tb), agents: newFakeDirectory()}
	w.js = natstest.JetStream(tb, w.server)
	require.NoError(tb, topology.Ensure(natstest.Context(tb), w.js, cell, topology.Options{StorageBytes: 1 << 30}))
	w.pool = w.database(tb)
	return w
}

// database returns a new database.
func (w *fixture) database(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	pool, err := postgres.Connect(tb.Context(), postgres.Config{URL: pgtest.Database(tb), Schema: "deploys"},
		slog.New(slog.DiscardHandler))
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	series, err := store.Migrations()
	require.NoError(tb, err)
	require.NoError(tb, postgres.Migrate(tb.Context(), pool, slog.New(slog.DiscardHandler), series...))
	return pool
}

func (w *fixture) exec(sql string) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), sql)
	require.NoError(w.t, err)
}

func (w *fixture) reader(batch int) *nats.Reader {
	return &nats.Reader{
		Pool: w.pool, JetStream: natstest.JetStream(w.t, w.server), Cell: cell, Logger: w.logger(), Directory: w.agents,
		Environments: environment.Rules{Label: label}, History: history.Rules{GroupLabel: label}, Batch: batch,
		Limits: w.limits, Metrics: w.metrics,
	}
}

func (w *fixture) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (w *fixture) reconciler() *nats.Reconciler {
	return &nats.Reconciler{Pool: w.pool, JetStream: natstest.JetStream(w.t, w.server), Cell: cell, Logger: w.logger()}
}

// run starts a reader. It returns the function that stops it.
func (w *fixture) run(reader *nats.Reader) (stop func()) {
	w.t.Helper()
	consumer, err := reader.Consumer()
	require.NoError(w.t, err)
	return w.runConsumer(consumer)
}

func (w *fixture) runConsumer(consumer *nats.Consumer) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(w.t, <-done)
	}
	w.t.Cleanup(stop)
	return stop
}

// awaitProcessed waits until every observation is processed.
func (w *fixture) awaitProcessed() {
	w.t.Helper()
	last := w.lastSequence()
	require.Eventually(w.t, func() bool { return w.position() >= last }, soon, 5*time.Millisecond)
}

// lastSequence returns the last sequence of OBSERVED.
func (w *fixture) lastSequence() uint64 {
	w.t.Helper()
	stream, err := w.js.Stream(w.t.Context(), topology.StreamObserved)
	require.NoError(w.t, err)
	return stream.CachedInfo().State.LastSeq
}

func (w *fixture) position() uint64 {
	var sequence int64
	err := w.pool.QueryRow(w.t.Context(), `select coalesce(max(sequence), 0) from stream_cursors`).Scan(&sequence)
	if err != nil {
		return 0
	}
	return uint64(sequence)
}

// process processes all observations, in batches of a size.
func (w *fixture) process(batch ...int) {
	w.t.Helper()
	size := 0
	if len(batch) > 0 {
		size = batch[0]
	}
	stop := w.run(w.reader(size))
	w.awaitProcessed()
	stop()
}

// fact is a message of DEPLOYS.
type fact struct {
	events.DeployFact

	id       string
	position uint64
}

// published returns all facts on the stream, in order.
func (w *fixture) published() []fact {
	w.t.Helper()
	stream, err := w.js.Stream(w.t.Context(), topology.StreamDeploys)
	require.NoError(w.t, err)
	var all []fact
	for n := stream.CachedInfo().State.FirstSeq; n <= stream.CachedInfo().State.LastSeq && n > 0; n++ {
		m, err := stream.GetMsg(w.t.Context(), n)
		require.NoError(w.t, err)
		e, err := event.Decode(m.Header, m.Data)
		require.NoError(w.t, err)
		one, err := cdevent.Read(e)
		require.NoError(w.t, err)
		require.Equal(w.t,
			cell.Deploy(one.Workload.ClusterUID, one.Workload.Namespace, one.Workload.Kind, one.Workload.Name,
				string(one.Fact)), m.Subject)
		all = append(all, fact{DeployFact: one, id: e.ID(), position: n})
	}
	return all
}

// ids returns a text for each fact: its workload, sequence, name and id.
func ids(facts []fact) []string {
	out := make([]string, len(facts))
	for i := range facts {
		out[i] = fmt.Sprintf("%s %d %s %s", facts[i].Workload.Name, facts[i].Sequence, facts[i].Fact, facts[i].id)
	}
	return out
}

// names returns the facts of a workload, in order.
func names(facts []fact, name string) []string {
	var out []string
	for i := range facts {
		if facts[i].Workload.Name == name {
			out = append(out, string(facts[i].Fact))
		}
	}
	return out
}

// checkOnce checks that no fact is published twice, that facts of a workload are numbered without a gap, and that the
// database has the same facts and positions. It returns the facts.
func (w *fixture) checkOnce() []fact {
	w.t.Helper()
	all := w.published()
	seen, sequences := map[string]bool{}, map[string]int{}
	for i := range all {
		f := &all[i]
		require.False(w.t, seen[f.id], "%s of %s is published twice", f.Fact, f.Workload.Name)
		seen[f.id] = true
		key := f.Workload.Kind + "/" + f.Workload.Name
		sequences[key]++
		require.Equal(w.t, sequences[key], f.Sequence, "%s of %s", f.Fact, f.Workload.Name)
	}
	rows, err := w.pool.Query(w.t.Context(), `select id, stream_sequence, data from facts`)
	require.NoError(w.t, err)
	stored := map[string]events.DeployFact{}
	positions := map[string]int64{}
	var id, data string
	var position int64
	_, err = pgx.ForEachRow(rows, []any{&id, &position, &data}, func() error {
		var one events.DeployFact
		positions[id] = position
		err := json.Unmarshal([]byte(data), &one)
		stored[id] = one
		return err
	})
	require.NoError(w.t, err)
	require.Len(w.t, stored, len(all))
	for i := range all {
		require.Equal(w.t, all[i].DeployFact, stored[all[i].id])
		require.EqualValues(w.t, all[i].position, positions[all[i].id], "%s %d of %s", all[i].Fact, all[i].Sequence,
			all[i].Workload.Name)
	}
	return all
}

// rows returns the rows of all tables as text, without positions on the stream.
func rows(t testing.TB, pool *pgxpool.Pool) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for table, row := range map[string]string{
		"agents": `t`, "workloads": `(to_jsonb(t) - 'told')`, "environments": `(to_jsonb(t) - 'told')`,
		"facts": `(to_jsonb(t) - 'stream_sequence' - 'recorded_at')`, "rollouts": `t`, "resyncs": `t`,
		"resync_members": `t`, "reporters": `t`,
		"claims": `(to_jsonb(t) - 'claimed_at')`,
	} {
		found, err := pool.Query(t.Context(), `select `+row+`::text from `+table+` t order by 1`)
		require.NoError(t, err)
		out[table], err = pgx.CollectRows(found, pgx.RowTo[string])
		require.NoError(t, err)
	}
	return out
}

// hook calls functions before and after a batch is published.
type hook struct {
	ingest.Publisher

	before, after func() error
}

func (h hook) Publish(ctx context.Context, facts publish.Facts, queues []*publish.Queue) (map[string]int64, error) {
	if h.before != nil {
		if err := h.before(); err != nil {
			return nil, err
		}
	}
	positions, err := h.Publisher.Publish(ctx, facts, queues)
	if err == nil && h.after != nil {
		err = h.after()
	}
	return positions, err
}

func purgeUpTo(sequence uint64) jetstream.StreamPurgeOpt {
	return jetstream.WithPurgeSequence(sequence + 1)
}
