package ingest_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/admin"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/judge"
	"lockstep.internal/services/state/nats"
	store "lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	cell = topology.Cell("local")
	// timeout limits operations of other processes on a busy machine.
	timeout = time.Minute
)

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

// fixture is a database and a NATS server with agents 7 and 8.
type fixture struct {
	t            testing.TB
	pool         *pgxpool.Pool
	server       *natsd.Server
	js           jetstream.JetStream
	send         func(m *natsgo.Msg) // publishes what agents report
	workspaces   *store.Workspaces
	ingestStores *store.IngestStores
	logs         *logs
	// maxObjects is a field of ingest.Ingest.
	maxObjects int64
	// activityReadUntil is a field of ingest.Ingest.
	activityReadUntil func() time.Time
	// metrics is a field of ingest.Ingest. Nil for none.
	metrics *ingest.Metrics
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	w := &fixture{t: tb, server: natstest.Server(tb), logs: &logs{}}
	w.js = natstest.JetStream(tb, w.server)
	require.NoError(tb, topology.Ensure(natstest.Context(tb), w.js, cell, topology.Options{StorageBytes: 1 << 30}))
	w.send = func(m *natsgo.Msg) {
		_, err := w.js.PublishMsg(w.t.Context(), m)
		require.NoError(w.t, err)
	}
	w.open()
	return w
}

// cursorChannel is the NOTIFY channel of moved cursors and judged resyncs.
const cursorChannel = "cursors"

// prepare creates the tables, and triggers that notify cursorChannel when a consumer commits and when a resync is
// judged.
func prepare(url string) error {
	ctx, logger := context.Background(), slog.New(slog.DiscardHandler)
	pool, err := postgres.Connect(ctx, postgres.Config{URL: url}, logger)
	if err != nil {
		return err
	}
	defer pool.Close()
	series, err := store.Migrations()
	if err != nil {
		return err
	}
	if err := postgres.Migrate(ctx, pool, logger, series...); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, `
		create function notify_cursor() returns trigger language plpgsql as
			$$ begin perform pg_notify('`+cursorChannel+`', ''); return null; end $$;
		create trigger notify_cursor after insert or update on stream_cursors
			for each row execute function notify_cursor();
		create trigger notify_judged after delete on resyncs_to_judge for each row execute function notify_cursor()`)
	return err
}

// open connects to a database with empty tables and inserts the test data.
func (w *fixture) open() {
	w.t.Helper()
	var err error
	url := pgtest.Prepared(w.t, prepare)
	w.pool, err = postgres.Connect(w.t.Context(), postgres.Config{URL: url}, slog.New(slog.DiscardHandler))
	require.NoError(w.t, err)
	w.t.Cleanup(w.pool.Close)
	w.exec(`
		insert into organizations (id, name) values (1, 'o');
		insert into groups (id, organization_id, name) values (2, 1, 'g');
		insert into projects (id, organization_id, group_id, name) values (4, 1, 2, 'p');
		insert into users (id, username) values (9, 'u');
		insert into agents (id, project_id, name, token_hash, curve_public_key)
			values (7, 4, 'a', 'a', 'X'), (8, 4, 'b', 'b', 'X')`)
	w.workspaces = &store.Workspaces{}
	w.ingestStores = &store.IngestStores{Workspaces: w.workspaces}
}

func (w *fixture) exec(sql string) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), sql)
	require.NoError(w.t, err)
}

func (w *fixture) tx(fn func(tx pgx.Tx) error) {
	w.t.Helper()
	require.NoError(w.t, postgres.InTx(w.t.Context(), w.pool, fn))
}

// newWorkspace returns a new workspace of agent 7.
func newWorkspace(tb testing.TB, name string) (workspace.Workspace, []workspace.Event) {
	tb.Helper()
	made, created, err := workspace.New(workspace.Creation{
		Name: name, ProjectID: 4, AgentID: 7, UserID: 9, Template: "default",
		Spec: workspace.Spec{Image: "ide:9"}, Now: start(),
	})
	require.NoError(tb, err)
	return made, created
}

// workspace inserts a workspace of agent 7. It is not applied yet.
func (w *fixture) workspace(name string) workspace.Workspace {
	w.t.Helper()
	made, created := newWorkspace(w.t, name)
	w.tx(func(tx pgx.Tx) error { return w.insert(tx, made, created...) })
	return made
}

// insert stores a new workspace and publishes it, as the API does.
func (w *fixture) insert(tx pgx.Tx, made workspace.Workspace, created ...workspace.Event) error {
	if err := w.workspaces.Insert(w.t.Context(), tx, made); err != nil {
		return err
	}
	return w.publishUpdate(tx, workspace.Update{After: made, Events: created})
}

// save stores a changed workspace and publishes the change, as the API does.
func (w *fixture) save(tx pgx.Tx, update workspace.Update) error {
	if !update.Changed() {
		return nil
	}
	if err := w.workspaces.Save(w.t.Context(), tx, update.After); err != nil {
		return err
	}
	return w.publishUpdate(tx, update)
}

func (w *fixture) publishUpdate(tx pgx.Tx, update workspace.Update) error {
	configured, err := w.ingestStores.In(tx).AgentConfigurations(w.t.Context(), []int64{update.After.AgentID})
	if err != nil {
		return err
	}
	messages, err := encoder().Workspaces(w.t.Context(), configured, update)
	if err != nil {
		return err
	}
	return outbox.Insert(w.t.Context(), tx, messages...)
}

func encoder() publish.Encoder { return publish.Encoder{Cell: cell} }

func (w *fixture) ingest() *ingest.Ingest {
	return &ingest.Ingest{
		Logger: slog.New(w.logs), Encoder: encoder(), MaxObjects: w.maxObjects, ActivityReadUntil: w.activityReadUntil,
		Metrics: w.metrics,
	}
}

func (w *fixture) directory() *admin.Directory {
	return &admin.Directory{Directory: &store.Directory{DB: w.pool, Now: time.Now}, Encoder: encoder()}
}

// change changes a workspace as the API does.
func (w *fixture) change(
	id uuid.UUID, decide func(workspace.Workspace) (workspace.Workspace, []workspace.Event, error),
) {
	w.t.Helper()
	w.tx(func(tx pgx.Tx) error {
		locked, err := w.workspaces.Lock(w.t.Context(), tx, []uuid.UUID{id})
		if err != nil {
			return err
		}
		after, events, err := decide(locked[id])
		if err != nil {
			return err
		}
		return w.save(tx, workspace.Update{Before: locked[id], After: after, Events: events})
	})
}

func (w *fixture) desire(id uuid.UUID, to workspace.DesiredState) {
	w.t.Helper()
	w.change(id, func(was workspace.Workspace) (workspace.Workspace, []workspace.Event, error) {
		return was.SetDesired(to, 9, start())
	})
}

func (w *fixture) get(id uuid.UUID) workspace.Workspace {
	w.t.Helper()
	got, err := w.workspaces.Get(w.t.Context(), w.pool, store.WorkspaceReference{ID: id})
	require.NoError(w.t, err)
	return got
}

func (w *fixture) consumers(batch int) *nats.Consumers {
	return &nats.Consumers{
		Pool: w.pool, JetStream: natstest.JetStream(w.t, w.server), Cell: cell, Logger: slog.New(w.logs),
		Ingest: w.ingest(), IngestStores: w.ingestStores, Batch: batch,
	}
}

func (w *fixture) judge() *judge.Judge {
	return &judge.Judge{
		Pool: w.pool, Logger: slog.New(w.logs), Ingest: w.ingest(), IngestStores: w.ingestStores,
	}
}

// startConsumers starts both consumers and the judge, and returns a function that stops them.
func (w *fixture) startConsumers(batch int) func() {
	w.t.Helper()
	stopReaders, stopJudge := w.startReaders(batch), w.startJudge()
	return func() { stopReaders(); stopJudge() }
}

// startReaders starts both consumers and returns a function that stops them.
func (w *fixture) startReaders(batch int) func() {
	w.t.Helper()
	in := w.consumers(batch)
	observed, err := in.Observed()
	require.NoError(w.t, err)
	applied, err := in.Applied()
	require.NoError(w.t, err)
	return w.startAll(observed.Run, applied.Run)
}

// startJudge starts a judge, which starts again after a failure, and returns a function that stops it.
func (w *fixture) startJudge() func() {
	w.t.Helper()
	return w.startAll(func(ctx context.Context) error {
		for ctx.Err() == nil {
			if err := w.judge().Run(ctx); err != nil {
				slog.New(w.logs).WarnContext(ctx, "judge failed", logkey.Error(err))
			}
		}
		return nil
	})
}

func (w *fixture) startAll(runs ...func(context.Context) error) func() {
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	for _, run := range runs {
		running.Go(func() {
			if err := run(ctx); err != nil {
				w.t.Errorf("consumer: %v", err)
			}
		})
	}
	return func() { cancel(); running.Wait() }
}

// read consumes all messages of both streams, and judges no resync unless a message requires it.
func (w *fixture) read() {
	w.t.Helper()
	defer w.startReaders(0)()
	w.haveRead()
}

// ingestAll consumes all messages of both streams and judges all resyncs.
func (w *fixture) ingestAll() {
	w.t.Helper()
	defer w.startConsumers(0)()
	w.caughtUp()
}

// haveRead waits until all messages are consumed.
func (w *fixture) haveRead() {
	w.t.Helper()
	for _, stream := range []string{topology.StreamObserved, topology.StreamApplied} {
		s, err := w.js.Stream(w.t.Context(), stream)
		require.NoError(w.t, err)
		last := s.CachedInfo().State.LastSeq
		// Not "or above": after a restore the stream ends before the cursor.
		w.waitForCursor(stream, func(sequence uint64) bool { return sequence == last })
	}
}

// caughtUp waits until all messages are consumed and all resyncs are judged.
func (w *fixture) caughtUp() {
	w.t.Helper()
	w.haveRead()
	w.waitUntil("all resyncs are judged", func(db store.Querier) bool {
		rows, err := db.Query(w.t.Context(), `select agent_id from resyncs_to_judge`)
		require.NoError(w.t, err)
		left, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		require.NoError(w.t, err)
		return len(left) == 0
	})
}

// waitForCursor waits until the cursor of a stream has moved to an expected sequence.
func (w *fixture) waitForCursor(stream string, expected func(sequence uint64) bool) {
	w.t.Helper()
	w.waitUntil(stream+" is consumed", func(db store.Querier) bool { return expected(w.sequence(db, stream)) })
}

// waitUntil waits for a condition that becomes true with a notification of cursorChannel.
func (w *fixture) waitUntil(what string, condition func(db store.Querier) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), timeout)
	defer cancel()
	conn, err := w.pool.Acquire(ctx)
	require.NoError(w.t, err)
	defer conn.Release()
	_, err = conn.Exec(ctx, `listen `+cursorChannel)
	require.NoError(w.t, err)
	for !condition(conn) {
		_, err := conn.Conn().WaitForNotification(ctx)
		require.NoError(w.t, err, what)
	}
	_, err = conn.Exec(ctx, `unlisten *`)
	require.NoError(w.t, err)
}

// sequence returns the cursor of a stream; 0 before the first message.
func (w *fixture) sequence(db store.Querier, stream string) uint64 {
	w.t.Helper()
	rows, err := db.Query(w.t.Context(), `select sequence from stream_cursors where stream = $1`, stream)
	require.NoError(w.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(w.t, err)
	if len(found) == 0 {
		return 0
	}
	return uint64(found[0])
}

// published returns the events in the outbox whose subject matches a LIKE pattern, in order.
func (w *fixture) published(subject string) []map[string]any {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(),
		`select data from outbox where subject like $1 order by id`, "lockstep.local."+subject)
	require.NoError(w.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	require.NoError(w.t, err)
	out := make([]map[string]any, len(found))
	for i := range found {
		require.NoError(w.t, json.Unmarshal(found[i], &out[i]))
	}
	return out
}

// states returns the actual states that were published for a workspace.
func (w *fixture) states(id uuid.UUID) []string {
	w.t.Helper()
	published := w.published("workspace.4." + id.String() + ".state_changed")
	out := make([]string, 0, len(published))
	for _, e := range published {
		out = append(out, e["to"].(string))
	}
	return out
}

// resyncNonces returns the nonces of the resync requests to agent 7 with this cause.
func (w *fixture) resyncNonces(cause string) []string {
	w.t.Helper()
	var nonces []string
	for _, e := range w.published("control.7.resync") {
		if e["cause"] == cause {
			nonces = append(nonces, e["nonce"].(string))
		}
	}
	return nonces
}

// causes returns cause and state of each desired_state_changed event.
func (w *fixture) causes(id uuid.UUID) []string {
	w.t.Helper()
	published := w.published("workspace.4." + id.String() + ".desired_state_changed")
	out := make([]string, 0, len(published))
	for _, e := range published {
		out = append(out, e["cause"].(string)+" "+e["to"].(string))
	}
	return out
}

// deadLetterReasons returns the reasons of all messages on DEAD.
func (w *fixture) deadLetterReasons() []string {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), topology.StreamDead)
	require.NoError(w.t, err)
	var reasons []string
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(w.t.Context(), seq)
		require.NoError(w.t, err)
		reasons = append(reasons, m.Header.Get("Lockstep-Dead-Reason"))
	}
	return reasons
}

func (w *fixture) publish(subject, kind, source, id string, data any) {
	w.t.Helper()
	attributes := event.Attributes{Type: event.TypePrefix + kind, Source: source, Subject: "s", ID: id, Time: start()}
	e, err := event.New(attributes, data)
	require.NoError(w.t, err)
	m, err := event.Encode(e, subject)
	require.NoError(w.t, err)
	w.send(m)
}

// object is a row of observed_objects.
type object struct {
	Version string
	Epoch   int64
	Deleted bool
}

func (w *fixture) object(name string) object {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `
		select resource_version::text, epoch, deleted from observed_objects
		where agent_id = 7 and name = $1`, name)
	require.NoError(w.t, err)
	o, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[object])
	require.NoError(w.t, err)
	return o
}

// outcome returns the outcome of a resync.
func (w *fixture) outcome(resync string) string {
	w.t.Helper()
	var out string
	query := `select outcome from resyncs where resync_id = $1`
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), query, resync).Scan(&out))
	return out
}
