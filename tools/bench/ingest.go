package main

import (
	"context"
	"errors"
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
	js         jetstream.JetStream
	pool       *pgxpool.Pool
	bare       *bareUpsert
	cursor     *cursorWatch
	workspaces []workspace.Workspace
	version    int
	sequence   uint64 // of the last message
}

// ingest measures the state service's consumer of OBSERVED beside bare upserts of the same rows.
func ingest(ctx context.Context, f *fixture, size Size, measured Measured) {
	database := must(f.postgres(ctx)).URL()
	_, js, _ := f.jetStream(ctx)
	i := &ingestFixture{js: js, pool: f.stateTables(ctx, database, "ours")}
	i.bare = newBareUpsert(ctx, f.stateTables(ctx, database, "bare"))
	i.cursor = watchCursor(ctx, f, i.pool)
	i.createWorkspaces(ctx, size.of(ingestWorkspaces))

	unowned, owned := must(newFleet(benchAgent, "o")), must(newFleet(benchAgent, "w"))
	unowned.anonymous, owned.workspaces = true, i.workspaces
	objects := size.of(ingestObjects)
	if size.wants("rows_per_s") {
		// A round has half of the objects of the round before.
		measured["rows_per_s"] = i.compare(ctx, size, func(round int) []observation {
			return i.observations(unowned, round*objects/2, objects, true)
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

func (i *ingestFixture) createWorkspaces(ctx context.Context, n int) {
	workspaces := &store.Workspaces{Encoder: publish.Encoder{Cell: benchCell}}
	check(postgres.InTx(ctx, i.pool, func(tx pgx.Tx) error {
		for k := range n {
			w, created, err := workspace.New(workspace.Creation{
				Name: fmt.Sprintf("w%06d", k), ProjectID: 4, AgentID: benchAgent, UserID: 9, Template: "default",
				Spec: workspace.Spec{Image: "registry.example.com/ide:9"}, Now: time.Now(),
			})
			if err != nil {
				return err
			}
			if err := workspaces.Insert(ctx, tx, w, created); err != nil {
				return err
			}
			i.workspaces = append(i.workspaces, w)
		}
		_, err := tx.Exec(ctx, `truncate outbox`)
		return err //nolint:wrapcheck // shown as it is
	}))
}

// observations returns new versions of the three objects of n workspaces from the first on.
func (i *ingestFixture) observations(f *fleet, first, n int, ready bool) []observation {
	var out []observation
	for k := first; k < first+n; k++ {
		for _, kind := range object.WorkspaceKinds() {
			i.version++
			out = append(out, must(f.observe(kind, f.object(kind, k, i.version, ready), time.Now())))
		}
	}
	return out
}

// compare measures ingest and bare upserts of the same observations in turns.
func (i *ingestFixture) compare(ctx context.Context, size Size, observe func(round int) []observation) Measurement {
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
			rows := make([]row, 0, len(observed))
			for _, o := range observedIn(round) {
				rows = append(rows, o.row)
			}
			began := time.Now()
			i.bare.put(ctx, rows)
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
		i.sequence = max(i.sequence, must(acknowledged(ctx, future)).Sequence)
	}
	began := time.Now()
	stop := i.consume(ctx)
	at, err := i.cursor.reached(ctx, i.sequence)
	check(errors.Join(err, stop()))
	return float64(len(observed)) / at.Sub(began).Seconds()
}

func acknowledged(ctx context.Context, future jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	select {
	case ack := <-future.Ok():
		return ack, nil
	case err := <-future.Err():
		return nil, fmt.Errorf("publish: %w", err)
	case <-ctx.Done():
		return nil, fmt.Errorf("publish: %w", context.Cause(ctx))
	}
}

// consume runs the consumer of the state service until it is stopped.
func (i *ingestFixture) consume(ctx context.Context) (stop func() error) {
	encoder := publish.Encoder{Cell: benchCell}
	observed := must((&statenats.Readers{
		Pool: i.pool, JetStream: i.js, Cell: benchCell, Logger: quiet(), Ingest: &stateingest.Ingest{Logger: quiet()},
		Observations: &store.Observations{Encoder: encoder, Workspaces: &store.Workspaces{Encoder: encoder}},
	}).Observed())
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- observed.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// measureCommits publishes at a steady rate and measures the time from publish to commit.
func (i *ingestFixture) measureCommits(ctx context.Context, f *fleet, size Size, measured Measured) {
	stop := i.consume(ctx)
	defer func() { check(stop()) }()
	kinds := object.WorkspaceKinds()
	var ours, bare []float64
	next := 0
	takeTurns(ctx, size.For,
		func(round int) float64 {
			var observed []observation
			for range size.of(steadyRate) {
				kind, workspace := kinds[next%len(kinds)], next/len(kinds)%len(i.workspaces)
				i.version, next = i.version+1, next+1
				o := must(f.observe(kind, f.object(kind, workspace, i.version, round%2 == 0), time.Now()))
				observed = append(observed, o)
			}
			ours = append(ours, i.commitTimes(ctx, observed)...)
			return 0
		},
		func(int) float64 {
			for range size.of(steadyRate / 4) {
				i.version++
				id := uuid.New().String()
				began := time.Now()
				i.bare.put(ctx, []row{{
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
		i.sequence = max(i.sequence, must(acknowledged(ctx, future)).Sequence)
		times = append(times, milliseconds(must(i.cursor.reached(ctx, i.sequence)).Sub(published[k])))
	}
	return times
}
