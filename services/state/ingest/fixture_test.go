package ingest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/ingest"
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
	// soon bounds what depends on another process on a busy machine.
	soon = time.Minute
)

func start() time.Time { return time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC) }

// fixture is a state service's database and streams, with one agent whose id is 7, and agent 8 beside it.
type fixture struct {
	t            testing.TB
	url          string
	pool         *pgxpool.Pool
	server       *natsd.Server
	js           jetstream.JetStream
	workspaces   *store.Workspaces
	observations *store.Observations
	encoder      publish.Encoder
	logs         *logs
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	w := &fixture{t: tb, server: natstest.Server(tb), logs: &logs{}}
	w.js = natstest.JetStream(tb, w.server)
	require.NoError(tb, topology.Ensure(natstest.Context(tb), w.js, cell, topology.Options{StorageBytes: 1 << 30}))
	w.open(pgtest.Database(tb))
	return w
}

// open takes an empty database.
func (w *fixture) open(url string) {
	w.t.Helper()
	var err error
	w.url = url
	w.pool, err = postgres.Connect(w.t.Context(), postgres.Config{URL: url}, slog.New(slog.DiscardHandler))
	require.NoError(w.t, err)
	w.t.Cleanup(w.pool.Close)
	series, err := store.Migrations()
	require.NoError(w.t, err)
	require.NoError(w.t, postgres.Migrate(w.t.Context(), w.pool, slog.New(slog.DiscardHandler), series...))
	w.exec(`insert into organizations (id, name) values (1, 'o')`)
	w.exec(`insert into groups (id, organization_id, name) values (2, 1, 'g')`)
	w.exec(`insert into projects (id, organization_id, group_id, name) values (4, 1, 2, 'p')`)
	w.exec(`insert into users (id, username) values (9, 'u')`)
	w.exec(
		`insert into agents (id, project_id, name, token_hash, curve_public_key) values (7, 4, 'a', 'a', 'X'), (8, 4, 'b', 'b', 'X')`,
	)
	w.encoder = publish.Encoder{Cell: cell}
	w.workspaces = &store.Workspaces{Encoder: w.encoder}
	w.observations = &store.Observations{Encoder: w.encoder, Workspaces: w.workspaces}
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

// workspace makes one of agent 7 that its dispatcher has not heard of.
func (w *fixture) workspace(name string) workspace.Workspace {
	w.t.Helper()
	made, created, err := workspace.New(
		workspace.Creation{
			Name:      name,
			ProjectID: 4,
			AgentID:   7,
			UserID:    9,
			Template:  "default",
			Spec:      workspace.Spec{Image: "ide:9"},
			Now:       start(),
		},
	)
	require.NoError(w.t, err)
	w.tx(func(tx pgx.Tx) error { return w.workspaces.Insert(w.t.Context(), tx, made, created) })
	return made
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
		return w.workspaces.Save(w.t.Context(), tx, workspace.Update{Before: locked[id], After: after, Events: events})
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

func (w *fixture) readers(batch int) *nats.Readers {
	return &nats.Readers{
		Pool: w.pool, JetStream: natstest.JetStream(w.t, w.server), Cell: cell, Logger: slog.New(w.logs),
		Ingest: &ingest.Ingest{Logger: slog.New(w.logs)}, Observations: w.observations, Batch: batch,
	}
}

// begin runs both consumers until stop.
func (w *fixture) begin(batch int) func() {
	w.t.Helper()
	in := w.readers(batch)
	observed, err := in.Observed()
	require.NoError(w.t, err)
	applied, err := in.Applied()
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{observed.Run, applied.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				w.t.Errorf("consumer: %v", err)
			}
		})
	}
	return func() { cancel(); running.Wait() }
}

// take has everything that is on the streams taken into the database.
func (w *fixture) ingestAll() {
	w.t.Helper()
	defer w.begin(0)()
	w.caughtUp()
}

func (w *fixture) caughtUp() {
	w.t.Helper()
	for _, stream := range []string{topology.StreamObserved, topology.StreamApplied} {
		s, err := w.js.Stream(w.t.Context(), stream)
		require.NoError(w.t, err)
		last := s.CachedInfo().State.LastSeq
		require.Eventually(
			w.t,
			func() bool { return w.sequence(stream) == last },
			soon,
			2*time.Millisecond,
			"%s is taken",
			stream,
		)
	}
}

func (w *fixture) sequence(stream string) uint64 {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `select sequence from stream_cursors where stream = $1`, stream)
	require.NoError(w.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(w.t, err)
	if len(found) == 0 {
		return 0
	}
	return uint64(found[0])
}

// told are the events in the outbox of a type ("" for all), in order, as JSON.
func (w *fixture) published(subject string) []map[string]any {
	w.t.Helper()
	rows, err := w.pool.Query(
		w.t.Context(),
		`select data from outbox where subject like $1 order by id`,
		"lockstep.local."+subject,
	)
	require.NoError(w.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	require.NoError(w.t, err)
	out := make([]map[string]any, len(found))
	for i := range found {
		require.NoError(w.t, json.Unmarshal(found[i], &out[i]))
	}
	return out
}

// states are the changes of the actual state that were told of a workspace.
func (w *fixture) states(id uuid.UUID) []string {
	w.t.Helper()
	told := w.published("workspace.4." + id.String() + ".state_changed")
	out := make([]string, 0, len(told))
	for _, e := range told {
		out = append(out, e["to"].(string))
	}
	return out
}

// asked are the nonces that agent 7 was asked for full resyncs with, for a cause.
func (w *fixture) asked(cause string) []string {
	w.t.Helper()
	var nonces []string
	for _, e := range w.published("control.7.resync") {
		if e["cause"] == cause {
			nonces = append(nonces, e["nonce"].(string))
		}
	}
	return nonces
}

// causes are why a workspace was dispatched anew.
func (w *fixture) causes(id uuid.UUID) []string {
	w.t.Helper()
	told := w.published("workspace.4." + id.String() + ".desired_state_changed")
	out := make([]string, 0, len(told))
	for _, e := range told {
		out = append(out, e["cause"].(string)+" "+e["to"].(string))
	}
	return out
}

// dead are the reasons on DEAD.
func (w *fixture) dead() []string {
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
	e, err := event.New(
		event.Attributes{Type: event.TypePrefix + kind, Source: source, Subject: "s", ID: id, Time: start()},
		data,
	)
	require.NoError(w.t, err)
	m, err := event.Encode(e, subject)
	require.NoError(w.t, err)
	_, err = w.js.PublishMsg(w.t.Context(), m)
	require.NoError(w.t, err)
}

// fakeAgent plays the watcher and the dispatcher of an agent.
type fakeAgent struct {
	*fixture

	id      int64
	cluster string
	now     time.Time
	events  int
}

func (w *fixture) agent(id int64) *fakeAgent {
	return &fakeAgent{fixture: w, id: id, cluster: "cluster-1", now: start()}
}

func (a *fakeAgent) observe(subject, kind string, data any) {
	a.t.Helper()
	a.events++
	a.publish(subject, kind, event.AgentSource("local", a.id, "watcher"), strconv.Itoa(a.events), data)
}

// deploymentReport is one observation of a Deployment in short.
type deploymentReport struct {
	name      string
	version   int
	spec      int
	available int
	revision  string
	workspace uuid.UUID
	deleted   bool
	resync    string
	uid       string
	progress  string
	template  int
	// generation is 1 unless it is given; label names another workspace, or what is none.
	generation int
	label      string
}

func (a *fakeAgent) meta(
	namespace, name string,
	version int,
	deleted bool,
	resync, workspace string,
) events.ObjectMeta {
	m := events.ObjectMeta{
		ClusterUID:      a.cluster,
		Namespace:       namespace,
		Name:            name,
		UID:             "uid-" + name,
		ResourceVersion: strconv.Itoa(version),
		Verb:            events.VerbUpserted,
		UpdateType:      events.UpdateTypePartial,
		ObservedAt:      a.now,
		ResyncID:        resync,
		WorkspaceID:     workspace,
	}
	if deleted {
		m.Verb = events.VerbDeleted
	}
	if resync != "" {
		m.UpdateType = events.UpdateTypeFull
	}
	return m
}

// sees sends an observation of a Deployment in the namespace ws-<agent>-<name>.
func (a *fakeAgent) reportsDeployment(s deploymentReport) {
	a.t.Helper()
	namespace := fmt.Sprintf("ws-%d-%s", a.id, s.name)
	label := ""
	if s.workspace != uuid.Nil {
		label = s.workspace.String()
	}
	if s.label != "" {
		label = s.label
	}
	generation := max(s.generation, 1)
	meta := a.meta(namespace, s.name, s.version, s.deleted, s.resync, label)
	meta.Annotations = map[string]string{workspace.AnnotationDesiredRevision: s.revision}
	if s.uid != "" {
		meta.UID = s.uid
	}
	progress := "NewReplicaSetAvailable"
	if s.progress != "" {
		progress = s.progress
	}
	a.observe(cell.Observed(a.id, "deployment", namespace, s.name), "observed.deployment.v1", events.ObservedDeployment{
		Object:             meta,
		SpecReplicas:       &s.spec,
		HasStatus:          true,
		AvailableReplicas:  s.available,
		Generation:         generation,
		ObservedGeneration: generation,
		Revision:           s.template,
		Conditions: []events.Condition{
			{Type: "Available", Status: "True", Reason: "MinimumReplicasAvailable"},
			{Type: "Progressing", Status: "True", Reason: progress},
		},
	})
}

// running is a Deployment that runs.
func running(w workspace.Workspace, version int) deploymentReport {
	return deploymentReport{name: w.Name, workspace: w.ID, version: version, spec: 1, available: 1, revision: "1"}
}

// absent is a Deployment that was deleted.
func absent(w workspace.Workspace, version int) deploymentReport {
	s := running(w, version)
	s.deleted = true
	return s
}

func member(s deploymentReport, resync string) deploymentReport {
	s.resync = resync
	return s
}

func (a *fakeAgent) pod(w workspace.Workspace, name string, version int, change func(p *events.ObservedPod)) {
	a.t.Helper()
	p := events.ObservedPod{
		Object:          a.meta(w.Namespace, name, version, false, "", w.ID.String()),
		Deployment:      w.Name,
		Phase:           "Pending",
		PodTemplateHash: "h",
	}
	change(&p)
	a.observe(cell.Observed(a.id, "deployment", w.Namespace, w.Name), "observed.pod.v1", p)
}

func (a *fakeAgent) replicaSet(w workspace.Workspace, version int) {
	a.t.Helper()
	a.observe(cell.Observed(a.id, "deployment", w.Namespace, w.Name), "observed.replicaset.v1", events.ObservedReplicaSet{
		Object: a.meta(
			w.Namespace,
			w.Name+"-h",
			version,
			false,
			"",
			w.ID.String(),
		),
		Deployment:      w.Name,
		Revision:        1,
		PodTemplateHash: "h",
	})
}

func (a *fakeAgent) begins(resync, nonce string, count, deployments int) {
	a.t.Helper()
	a.observe(cell.ObservedResync(a.id), "observed.resync_begun.v1", events.ObservedResyncBegun{
		ResyncID:   resync,
		ClusterUID: a.cluster,
		Cause:      events.ResyncCauseStart,
		Count:      count,
		Nonce:      nonce,
		ObservedAt: a.now,
		ListVersions: []events.ListVersion{
			{Kind: "deployment", ResourceVersion: strconv.Itoa(deployments)},
			{Kind: "pod", ResourceVersion: strconv.Itoa(deployments)},
		},
	})
}

func (a *fakeAgent) ends(resync string, count int) {
	a.t.Helper()
	a.observe(
		cell.ObservedResync(a.id),
		"observed.resync_ended.v1",
		events.ObservedResyncEnded{ResyncID: resync, ClusterUID: a.cluster, Count: count, ObservedAt: a.now},
	)
}

func (a *fakeAgent) ticks() {
	a.t.Helper()
	a.observe(cell.ObservedTick(a.id), "observed.tick.v1", events.ObservedTick{ClusterUID: a.cluster, ObservedAt: a.now})
}

// publishApplied says something of what is labelled with any text.
func (a *fakeAgent) publishApplied(label, kind string, revision int) {
	a.t.Helper()
	a.events++
	a.publish(
		cell.Applied(a.id, label),
		"applied."+kind+".v1",
		event.AgentSource("local", a.id, "dispatcher"),
		strconv.Itoa(a.events),
		map[string]any{"workspace_id": label, "desired_revision": revision, "observed_at": a.now},
	)
}

func (a *fakeAgent) reports(kind string, id uuid.UUID, revision int, more map[string]any) {
	a.t.Helper()
	a.events++
	data := map[string]any{"workspace_id": id.String(), "desired_revision": revision, "observed_at": a.now}
	maps.Copy(data, more)
	a.publish(
		cell.Applied(a.id, id.String()),
		"applied."+kind+".v1",
		event.AgentSource("local", a.id, "dispatcher"),
		strconv.Itoa(a.events),
		data,
	)
}

func (a *fakeAgent) applies(id uuid.UUID, revision int) {
	a.t.Helper()
	a.reports("applied", id, revision, map[string]any{"objects": []any{}})
}

// leaves says that a revision was applied, and with which generation the Deployment was left.
func (a *fakeAgent) leaves(w workspace.Workspace, revision, generation int) {
	a.t.Helper()
	a.reports(
		"applied",
		w.ID,
		revision,
		map[string]any{"objects": []any{}, "deployment_uid": "uid-" + w.Name, "deployment_generation": generation},
	)
}

func (a *fakeAgent) fails(id uuid.UUID, revision int) {
	a.t.Helper()
	a.reports(
		"apply_failed",
		id,
		revision,
		map[string]any{"reason": "Forbidden", "message": "the cluster forbids it", "attempt": 1, "retry_after_ms": 1000},
	)
}

// logs keeps what is logged from warnings on.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }
func (l *logs) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *logs) WithGroup(string) slog.Handler                    { return l }
func (l *logs) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.lines = append(l.lines, line)
	return nil
}

func (l *logs) matching(part string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for _, line := range l.lines {
		if strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return found
}

// object is the row of a Deployment of agent 7.
type object struct {
	Version string
	Epoch   int64
	Deleted bool
	Resync  string
}

func (w *fixture) object(name string) object {
	w.t.Helper()
	rows, err := w.pool.Query(
		w.t.Context(),
		`select resource_version::text, epoch, deleted, coalesce(resync_id, '') from observed_objects where agent_id = 7 and name = $1`,
		name,
	)
	require.NoError(w.t, err)
	o, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[object])
	require.NoError(w.t, err)
	return o
}

// outcome of a resync.
func (w *fixture) outcome(resync string) string {
	w.t.Helper()
	var out string
	require.NoError(
		w.t,
		w.pool.QueryRow(w.t.Context(), `select outcome from resyncs where resync_id = $1`, resync).Scan(&out),
	)
	return out
}
