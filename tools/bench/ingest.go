package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/postgres"
	stateingest "lockstep.internal/services/state/ingest"
	statenats "lockstep.internal/services/state/nats"
	store "lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/services/watcher/object"
)

const (
	ingestWorkspaces = 1000
	ingestObjects    = 5000 // workspaces; each has three objects
	steadyRate       = 200  // messages per second
)

// ingestFixture has the stream OBSERVED and two sets of tables.
type ingestFixture struct {
	*fixture

	js         jetstream.JetStream
	pool, bare *pgxpool.Pool
	cursor     cursor
	workspaces []workspace.Workspace
	version    int
	sequence   uint64 // of the last message
}

// ingest measures the state service's consumer of OBSERVED beside bare upserts of the same rows.
func ingest(ctx context.Context, f *fixture, size Size, measured Measured) {
	database := f.postgres(ctx)
	_, js, _ := f.jetStream(ctx)
	i := &ingestFixture{
		fixture: f, js: js, pool: f.stateTables(ctx, database, "ours"), bare: f.stateTables(ctx, database, "bare"),
	}
	i.cursor = watchCursor(ctx, f, i.pool)
	for k := range size.of(ingestWorkspaces) {
		i.createWorkspace(ctx, fmt.Sprintf("w%06d", k))
	}
	unowned, owned := newObjects(benchAgent, "o"), newObjects(benchAgent, "w")
	unowned.anonymous, owned.workspaces = true, i.workspaces
	n := size.of(ingestObjects)
	if size.wants("rows_per_s") {
		// A round has half of the objects of the round before.
		measured["rows_per_s"] = i.compare(ctx, size, func(round int) []observation {
			return i.observations(unowned, round*n/2, n, true)
		})
	}
	if size.wants("workspace_rows_per_s") {
		measured["workspace_rows_per_s"] = i.compare(ctx, size, func(round int) []observation {
			return i.observations(owned, 0, len(i.workspaces), round%2 == 0)
		})
	}
	if size.wants("commit_p50_ms", "commit_p99_ms") {
		i.measureCommits(ctx, owned, size, measured)
	}
}

func (i *ingestFixture) createWorkspace(ctx context.Context, name string) {
	w, _, err := workspace.New(workspace.Creation{
		Name: name, ProjectID: benchProject, AgentID: benchAgent, UserID: 9, Template: "default",
		Spec: workspace.Spec{Image: "registry.example.com/ide:9"}, Now: time.Now(),
	})
	check(err)
	check(postgres.InTx(ctx, i.pool, func(tx pgx.Tx) error { return (&store.Workspaces{}).Insert(ctx, tx, w) }))
	i.workspaces = append(i.workspaces, w)
}

// observations returns new versions of the three objects of n workspaces from the first on.
func (i *ingestFixture) observations(o *objects, first, n int, ready bool) []observation {
	var out []observation
	for k := first; k < first+n; k++ {
		for _, kind := range object.WorkspaceKinds() {
			i.version++
			out = append(out, o.observe(kind, k, i.version, ready))
		}
	}
	return out
}

// compare measures ingest and bare upserts of the same observations in turns.
func (i *ingestFixture) compare(ctx context.Context, size Size, observe func(round int) []observation) Figure {
	var observed []observation
	last := -1
	observedIn := func(round int) []observation {
		if round != last {
			observed, last = observe(round), round
		}
		return observed
	}
	return takeTurns(ctx, size.For,
		func(round int) float64 { return i.ingest(ctx, observedIn(round)) },
		func(round int) float64 {
			var rows []row
			for _, o := range observedIn(round) {
				rows = append(rows, o.row)
			}
			began := time.Now()
			putRows(ctx, i.bare, rows)
			return perSecond(len(rows), began)
		})
}

// ingest publishes the observations, then measures the consumer from its start to the commit of the
// last one.
func (i *ingestFixture) ingest(ctx context.Context, observed []observation) float64 {
	futures := make([]jetstream.PubAckFuture, 0, len(observed))
	for _, o := range observed {
		futures = append(futures, must(i.js.PublishMsgAsync(o.message)))
	}
	for _, future := range futures {
		i.sequence = max(i.sequence, acknowledged(ctx, future))
	}
	began := time.Now()
	stop := i.consume(ctx)
	at := i.cursor.reached(ctx, i.sequence)
	check(stop())
	return float64(len(observed)) / at.Sub(began).Seconds()
}

// consume runs the consumer of the state service until it is stopped.
func (i *ingestFixture) consume(ctx context.Context) (stop func() error) {
	observed := must((&statenats.Consumers{
		Pool: i.pool, JetStream: i.js, Cell: benchCell, Logger: quiet(),
		Ingest:       &stateingest.Ingest{Logger: quiet(), Encoder: publish.Encoder{Cell: benchCell}},
		IngestStores: &store.IngestStores{Workspaces: &store.Workspaces{}},
	}).Observed())
	return i.background(ctx, observed.Run)
}

// measureCommits publishes at a steady rate and measures the time from publish to commit.
func (i *ingestFixture) measureCommits(ctx context.Context, o *objects, size Size, measured Measured) {
	i.consume(ctx)
	kinds := object.WorkspaceKinds()
	var ours, bare []float64
	next := 0
	takeTurns(ctx, size.For,
		func(round int) float64 {
			var observed []observation
			for range size.of(steadyRate) {
				kind, workspace := kinds[next%len(kinds)], next/len(kinds)%len(i.workspaces)
				i.version, next = i.version+1, next+1
				observed = append(observed, o.observe(kind, workspace, i.version, round%2 == 0))
			}
			ours = append(ours, i.commitTimes(ctx, observed)...)
			return 0
		},
		func(int) float64 {
			for range size.of(steadyRate / 4) {
				i.version++
				id := uuid.New().String()
				began := time.Now()
				putRows(ctx, i.bare, []row{{
					kind: "pod", namespace: "bare", name: id, uid: id, version: strconv.Itoa(i.version), data: "{}",
				}})
				bare = append(bare, milliseconds(time.Since(began)))
			}
			return 0
		})
	measured["commit_p50_ms"] = beside(median(ours), median(bare))
	measured["commit_p99_ms"] = beside(percentile(ours, 99), percentile(bare, 99))
}

// commitTimes publishes steadyRate messages per second and returns the milliseconds until each is
// committed.
func (i *ingestFixture) commitTimes(ctx context.Context, observed []observation) []float64 {
	ticker := time.NewTicker(time.Second / steadyRate)
	defer ticker.Stop()
	published := make([]time.Time, len(observed))
	futures := make([]jetstream.PubAckFuture, len(observed))
	for k, o := range observed {
		<-ticker.C
		published[k], futures[k] = time.Now(), must(i.js.PublishMsgAsync(o.message))
	}
	var times []float64
	for k, future := range futures {
		i.sequence = max(i.sequence, acknowledged(ctx, future))
		times = append(times, milliseconds(i.cursor.reached(ctx, i.sequence).Sub(published[k])))
	}
	return times
}
