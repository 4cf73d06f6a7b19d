package nats_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
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
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/ingest"
	"lockstep.internal/services/deploys/nats"
	store "lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/publish"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

const (
	cell = topology.Cell("local")
	// soon limits waits for other processes on a busy machine.
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
	pool,
		err := postgres.Connect(tb.Context(), postgres.Config{URL: pgtest.Database(tb), Schema: "deploys"},
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
	}
}

func (w *fixture) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (w *fixture) reconciler() *nats.Reconciler {
	return &nats.Reconciler{Pool: w.pool, JetStream: natstest.JetStream(w.t, w.server), Cell: cell, Logger: w.logger()}
}

// run runs a reader until stop is called.
func (w *fixture) run(i *nats.Reader) (stop func()) {
	w.t.Helper()
	consumer, err := i.Consumer()
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

// ids returns a text for each fact that identifies it.
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
// database has the same facts and positions.
func (w *fixture) checkOnce() []fact {
	w.t.Helper()
	all := w.published()
	seen, sequences := map[string]bool{}, map[string]int{}
	for i := range all {
		f := &all[i]
		require.False(w.t, seen[f.id], "%s of %s is there twice", f.Fact, f.Workload.Name)
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

// agent plays a watcher.
type agent struct {
	w       *fixture
	id      int64
	cluster string
	now     time.Time
	rv      *int
	events  int
	resync  string
}

func (w *fixture) agent(id int64) *agent {
	return &agent{w: w, id: id, cluster: "cluster-" + strconv.FormatInt(id, 10), now: start(), rv: new(100)}
}

func (a *agent) publish(subject, kind string, data any) {
	a.w.t.Helper()
	a.events++
	e, err := event.New(event.Attributes{
		Type: kind, Source: event.AgentSource(string(cell), a.id, "watcher"), Subject: "s",
		ID: fmt.Sprintf("%d/%d", a.id, a.events), Time: a.now,
	}, data)
	require.NoError(a.w.t, err)
	msg, err := event.Encode(e, subject)
	require.NoError(a.w.t, err)
	// Other writers do not escape HTML characters in JSON.
	var raw bytes.Buffer
	plain := json.NewEncoder(&raw)
	plain.SetEscapeHTML(false)
	require.NoError(a.w.t, plain.Encode(data))
	msg.Data = raw.Bytes()
	_, err = a.w.js.PublishMsg(a.w.t.Context(), msg)
	require.NoError(a.w.t, err)
}

func (a *agent) advance(d time.Duration) { a.now = a.now.Add(d) }

func (a *agent) tick() {
	a.w.t.Helper()
	a.advance(15 * time.Second)
	a.publish(cell.ObservedTick(a.id), events.TypeObservedTick, events.ObservedTick{
		ClusterUID: a.cluster, ObservedAt: a.now,
	})
}

func (a *agent) version() string { return strconv.Itoa(*a.rv) }

func (a *agent) next() string {
	*a.rv++
	return a.version()
}

// begin begins a full resync.
func (a *agent) begin(count int, selection string) {
	a.w.t.Helper()
	a.advance(time.Second)
	a.resync = uuid.Must(uuid.NewV7()).String()
	a.publish(cell.ObservedResync(a.id), events.TypeObservedResyncBegun, map[string]any{
		"resync_id": a.resync, "cluster_uid": a.cluster, "cause": "start", "count": count, "observed_at": a.now,
		"scope": "workloads", "selection": selection,
		"list_versions": []map[string]string{
			{"kind": "deployment", "resource_version": a.version()},
			{"kind": "statefulset", "resource_version": a.version()},
			{"kind": "daemonset", "resource_version": a.version()},
			{"kind": "replicaset", "resource_version": a.version()},
		},
	})
}

func (a *agent) end(count int) {
	a.w.t.Helper()
	a.advance(time.Second)
	a.publish(cell.ObservedResync(a.id), events.TypeObservedResyncEnded, map[string]any{
		"resync_id": a.resync, "cluster_uid": a.cluster, "count": count, "observed_at": a.now, "scope": "workloads",
	})
	a.resync = ""
}

// list publishes a full resync with these Deployments and their ReplicaSets.
func (a *agent) list(selection string, apps ...*app) {
	a.w.t.Helper()
	count := 0
	for _, p := range apps {
		count += 1 + len(p.sets)
	}
	a.begin(count, selection)
	for _, p := range apps {
		p.send()
		for _, s := range p.sets {
			p.sendSet(s)
		}
	}
	a.end(count)
}

// app is a Deployment.
type app struct {
	a                          *agent
	name, uid, image           string
	rv                         string
	generation, revision       int
	replicas, updated, current int // desired, updated, available
	labels, annotations        map[string]string
	sets                       []*set
	started, created           time.Time
	first                      bool // the watcher observes it for the first time
	deadline                   *int
}

// set is a ReplicaSet.
type set struct {
	uid, rv, hash string
	revision      int
	created       time.Time
}

// app returns a Deployment with a completed first rollout. It publishes nothing.
func (a *agent) app(name string) *app {
	p := &app{
		a: a, name: name, uid: "uid-" + name, image: "i:1", replicas: 3, updated: 3, current: 3, generation: 1,
		revision: 1, labels: map[string]string{"app": name}, deadline: new(600),
	}
	p.started, p.created = a.now.Truncate(time.Second), start().Add(-time.Hour)
	p.sets = append(p.sets, &set{uid: "rs-" + name + "-1", hash: "h1", revision: 1, rv: a.next(), created: p.started})
	p.rv = a.next()
	return p
}

func (p *app) meta(name, uid, rv string, created time.Time) events.ObjectMeta {
	m := events.ObjectMeta{
		ClusterUID: p.a.cluster, Namespace: "shop", Name: name, UID: uid, ResourceVersion: rv, Verb: events.VerbUpserted,
		UpdateType: events.UpdateTypePartial,
		ObservedAt: p.a.now, CreatedAt: &created,
	}
	if p.a.resync != "" {
		m.UpdateType, m.ResyncID = events.UpdateTypeFull, p.a.resync
	}
	return m
}

func (p *app) observation() events.ObservedWorkload {
	m := p.meta(p.name, p.uid, p.rv, p.created)
	m.FirstSeen = p.first
	m.Labels, m.Annotations = p.labels, p.annotations
	message := fmt.Sprintf("ReplicaSet %q is progressing.", p.name+"-"+p.sets[len(p.sets)-1].hash)
	reason := "ReplicaSetUpdated"
	if p.updated == p.replicas && p.current == p.replicas {
		reason, message = "NewReplicaSetAvailable",
			fmt.Sprintf("ReplicaSet %q has successfully progressed.", p.name+"-"+p.sets[len(p.sets)-1].hash)
	}
	at := p.a.now.Truncate(time.Second)
	return events.ObservedWorkload{
		Object: m, Kind: events.WorkloadKindDeployment, Generation: p.generation, ObservedGeneration: p.generation,
		SpecReplicas: new(p.replicas), HasStatus: true,
		Strategy: "RollingUpdate", ProgressDeadlineSeconds: p.deadline, Revision: p.revision, Replicas: p.replicas,
		UpdatedReplicas: p.updated, ReadyReplicas: p.current,
		AvailableReplicas: p.current, UnavailableReplicas: p.replicas - p.current, TerminatingReplicas: new(0),
		Template: &events.PodTemplate{
			Digest: "d-" + p.image, Images: []events.TemplateImage{{Container: "c", Image: p.image}}, ChangedAt: &p.started,
			ChangedBy: "kubectl",
		},
		Conditions: []events.Condition{{
			Type: "Progressing", Status: "True", Reason: reason, Message: message,
			LastUpdateTime: &at, LastTransitionTime: &p.started,
		}},
	}
}

func (p *app) subject() string { return cell.ObservedWorkload(p.a.id, "deployment", "shop", p.name) }

// send publishes an observation of the Deployment.
func (p *app) send() {
	p.a.w.t.Helper()
	p.a.publish(p.subject(), events.TypeObservedWorkload, p.observation())
}

func (p *app) sendSet(s *set) {
	p.a.w.t.Helper()
	m := p.meta(p.name+"-"+s.hash, s.uid, s.rv, s.created)
	p.a.publish(p.subject(), events.TypeObservedWorkloadRevision, events.ObservedWorkloadRevision{
		Object: m, Kind: events.WorkloadRevisionKindReplicaset, Workload: p.name, WorkloadUID: p.uid, Revision: s.revision,
		TemplateHash: s.hash,
	})
}

// roll starts a rollout.
func (p *app) roll(image string) {
	p.a.w.t.Helper()
	p.a.advance(1300 * time.Millisecond)
	p.started = p.a.now.Truncate(time.Second)
	p.image, p.generation, p.revision, p.updated = image, p.generation+1, p.revision+1, 1
	s := &set{
		uid: fmt.Sprintf("rs-%s-%d", p.name, p.revision), hash: fmt.Sprintf("h%d", p.revision), revision: p.revision,
		rv: p.a.next(), created: p.started,
	}
	p.sets = append(p.sets, s)
	p.rv = p.a.next()
	p.sendSet(s)
	p.send()
}

// step publishes progress.
func (p *app) step() {
	p.a.w.t.Helper()
	p.a.advance(3 * time.Second)
	p.updated++
	p.rv = p.a.next()
	p.send()
}

// finish completes the rollout.
func (p *app) finish() {
	p.a.w.t.Helper()
	p.a.advance(2500 * time.Millisecond)
	p.updated, p.current = p.replicas, p.replicas
	p.rv = p.a.next()
	p.send()
}

// delete deletes the Deployment.
func (p *app) delete() {
	p.a.w.t.Helper()
	p.a.advance(time.Second)
	p.rv = p.a.next()
	o := p.observation()
	o.Object.Verb = events.VerbDeleted
	p.a.publish(p.subject(), events.TypeObservedWorkload, o)
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
