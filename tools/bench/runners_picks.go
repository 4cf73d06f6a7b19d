package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/stack"
)

// bareConnections is the number of connections that the baseline has at most: more of them are slower.
const bareConnections = 32

// growthRunners ask for jobs at once while few or many wait.
const growthRunners = 32

// measurePicks measures how many jobs runners get from the service.
func measurePicks(ctx context.Context, f *fixture, size Size, measured Measured) {
	clients := map[string]int{"picks_c1_per_s": 1, "picks_c32_per_s": 32, "picks_c256_per_s": 256}
	empty := map[string]int{"http_c1_per_s": 1, "http_c32_per_s": 32}
	if size.wants("picks_c1_per_s", "picks_c32_per_s", "picks_c256_per_s", "http_c1_per_s", "http_c32_per_s") {
		check(onFixture(ctx, f.programs, func(f *fixture) {
			b := newRunnersFixture(ctx, f, pendingJobs)
			bare := b.newBarePicks(ctx)
			server := f.startStandIn(ctx, standInTarget, targetConfig{Pods: 1}).addresses[targetHTTP]
			compare := func(clients map[string]int, ours func(c int) float64) {
				for name, c := range clients {
					if size.wants(name) {
						measured[name] = takeTurns(ctx, size.For,
							func(int) float64 { return ours(c) },
							func(int) float64 { return bare.picks(ctx, c, size) })
					}
				}
			}
			compare(clients, func(c int) float64 { return b.picks(ctx, c, size) })
			compare(empty, func(c int) float64 { return b.emptyCalls(ctx, server, c, size) })
		}))
	}
	if size.wants("picks_growth") {
		measureGrowth(ctx, f, size, measured)
	}
}

// measureGrowth compares picks from two services, of which one has many jobs that wait.
func measureGrowth(ctx context.Context, f *fixture, size Size, measured Measured) {
	check(onFixture(ctx, f.programs, func(f *fixture) {
		many := newRunnersFixture(ctx, f, max(size.of(manyJobs), fewJobs))
		check(onFixture(ctx, f.programs, func(f *fixture) {
			few := newRunnersFixture(ctx, f, fewJobs)
			measured["picks_growth"] = takeTurns(ctx, size.For,
				func(int) float64 { return many.picks(ctx, growthRunners, size) },
				func(int) float64 { return few.picks(ctx, growthRunners, size) })
		}))
	}))
}

// turn is shorter where few jobs wait, so that some are left at its end.
func (b *runnersFixture) turn(size Size) time.Duration {
	return min(turnOf(size), time.Duration(b.pending)*50*time.Microsecond)
}

// picks returns how many jobs c runners get a second.
func (b *runnersFixture) picks(ctx context.Context, c int, size Size) float64 {
	b.refill(ctx, "jobs")
	b.settle(ctx)
	return callRate(ctx, stack.Runners, c, b.turn(size), func(int) caller { return b.connect(ctx, anyRunner) })
}

// emptyCalls returns how many requests for jobs c runners send a second to a server that does nothing: no service can
// give more jobs than that over HTTP.
func (b *runnersFixture) emptyCalls(ctx context.Context, server string, c int, size Size) float64 {
	return callRate(ctx, "an empty server", c, b.turn(size), func(int) caller {
		return connectHTTP(ctx, "an empty server", server, http.StatusOK, func() []byte { return b.jobRequest(anyRunner) })
	})
}

// barePicks take jobs from a table with the same columns and indexes as that of the service, with nothing but a
// statement.
type barePicks struct {
	*runnersFixture

	conns *pgxpool.Pool
}

func (b *runnersFixture) newBarePicks(ctx context.Context) *barePicks {
	must(b.pool.Exec(ctx, `CREATE TABLE bare_jobs (LIKE jobs INCLUDING ALL) WITH (fillfactor = 70)`))
	conns := must(postgres.Open(postgres.Config{URL: b.url, Schema: stack.Runners, MaxConnections: bareConnections}))
	b.f.onEnd(conns.Close)
	return &barePicks{b, conns}
}

// picks returns how many jobs c clients take a second.
func (b *barePicks) picks(ctx context.Context, c int, size Size) float64 {
	b.refill(ctx, "bare_jobs")
	return callRate(ctx, "PostgreSQL", c, b.turn(size), func(int) caller { return bareCall{ctx, b.conns} })
}

// bareCall takes a job.
type bareCall struct {
	ctx  context.Context //nolint:containedctx // of the call
	pool *pgxpool.Pool
}

func (c bareCall) call() error {
	var id int64
	err := c.pool.QueryRow(c.ctx, `
		UPDATE bare_jobs SET state = 'running', revision = revision + 1, claims = claims + 1, runner_id = 1,
			started_at = now()
		WHERE id = (
			SELECT id FROM bare_jobs WHERE state = 'pending' ORDER BY pending_since LIMIT 1 FOR UPDATE SKIP LOCKED
		)
		RETURNING id`).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return errors.New("no job waits: the turn is too long for their number")
	}
	if err != nil {
		return fmt.Errorf("take a job: %w", err)
	}
	return nil
}

// Close implements [io.Closer]. The pool has the connections.
func (bareCall) Close() error { return nil }
