package schedule_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/schedule"
)

const stages = `
stages: [build, test, deploy]
build: {stage: build, script: make, artifacts: {paths: [out]}}
unit: {stage: test, script: make test, tags: [linux]}
lint: {stage: test, script: make lint, needs: []}
deploy: {stage: deploy, script: make deploy}
report: {stage: deploy, script: make report, when: on_failure}
`

func TestPipelineIsCreatedWithItsFirstJobsPending(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := request(stages)
	r.Ref, r.Protected, r.Variables = "main", true, []job.Variable{{Key: "TOKEN", Value: "a secret value", Masked: true}}
	p, err := f.scheduler.Create(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, p, f.pipeline(p.ID))
	require.Equal(t, job.Pending, p.State.State)
	require.Equal(t, map[string]job.State{
		"build": job.Pending, "unit": job.Created, "lint": job.Pending, "deploy": job.Created, "report": job.Created,
	}, f.states(p.ID))
	unit := f.job(p.ID, "unit")
	require.Equal(t, []string{"linux"}, unit.Tags)
	require.True(t, unit.Protected)
	require.Equal(t, []string{"created", "pending"}, f.events(f.job(p.ID, "build").ID))
	require.Equal(t, []string{"created"}, f.events(unit.ID))
	require.Zero(t, f.count(`SELECT count(*) FROM outbox WHERE convert_from(data, 'UTF8') LIKE '%secret%'`),
		"no event has a secret")
	picks := postgres.Picks{Pool: f.pool, Now: f.time}
	materials, err := picks.Materials(t.Context(), []job.Job{unit})
	require.NoError(t, err)
	definition := materials[unit.ID].Definition
	require.Equal(t, []string{"make test"}, definition.Script)
	require.Equal(t, []string{"build"}, definition.ArtifactJobs)
	require.Equal(t, []string{"a secret value"}, definition.MaskedValues())
	predefined := definition.Predefined()
	require.Equal(t, fmt.Sprint(p.ID), predefined["CI_PIPELINE_ID"])
	require.Equal(t, "4", predefined["CI_PROJECT_ID"])
	require.Contains(t, definition.Variables, job.Variable{Key: "CI_PROJECT_ID", Value: "4", Raw: true, Predefined: true})
}

func TestNothingIsStoredAfterAProblem(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, c := range map[string]struct {
		request schedule.Request
		message string
	}{
		"file":          {request("a: {script: x}\nb: 3"), ".gitlab-ci.yml:2:1:"},
		"plan":          {request("a: {script: x, needs: [c]}"), ".gitlab-ci.yml:1:"},
		"large file":    {request(strings.Repeat("#", 300_000)), "at most 262144 are allowed"},
		"key":           {withVariable("1A", "x", false), `has the key "1A"`},
		"twice":         {withVariable("A", "x", false, job.Variable{Key: "A"}), `has "A" twice`},
		"short secret":  {withVariable("A", "secret", true), "masked value with less than 8 bytes"},
		"zero byte":     {withVariable("A", "x\x00y", false), "zero byte"},
		"large value":   {withVariable("A", strings.Repeat("x", 70_000), false), "70000 bytes for A"},
		"ref":           {schedule.Request{Ref: "a\nb"}, "ref has a control character"},
		"long ref":      {schedule.Request{Ref: strings.Repeat("x", 256)}, "ref has 256 bytes"},
		"request id":    {schedule.Request{ID: strings.Repeat("x", 65)}, "request_id has 65 bytes"},
		"many":          {schedule.Request{Variables: make([]job.Variable, 101)}, "variables has 101 entries"},
		"zero in value": {request(`a: {script: "echo \0"}`), ""},
	} {
		_, err := f.scheduler.Create(t.Context(), c.request)
		requireCode(t, errcode.InvalidArgument, err)
		require.ErrorContains(t, err, c.message, name)
		require.NotContains(t, err.Error(), "secret\"", "an error has no value")
	}
	require.Zero(t, f.count(`SELECT (SELECT count(*) FROM pipelines) + (SELECT count(*) FROM jobs) +
		(SELECT count(*) FROM definitions) + (SELECT count(*) FROM outbox)`))
}

func withVariable(key, value string, masked bool, more ...job.Variable) schedule.Request {
	r := request("a: {script: x}")
	r.Variables = append([]job.Variable{{Key: key, Value: value, Masked: masked}}, more...)
	return r
}

func TestRepeatedRequestReturnsTheFirstPipeline(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.scheduler.Limits.Unfinished = 1
	r := request("a: {script: x}")
	r.ID = "request-1"
	var group sync.WaitGroup
	var mu sync.Mutex
	ids := map[int64]bool{}
	for range 8 {
		group.Go(func() {
			p, err := f.replica().Create(t.Context(), r)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids[p.ID] = true
		})
	}
	group.Wait()
	require.Len(t, ids, 1)
	p, err := f.scheduler.Create(t.Context(), r)
	require.NoError(t, err, "a repeated request is not counted")
	require.Contains(t, ids, p.ID)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM jobs`))

	other := r
	other.File = []byte("a: {script: y}")
	_, err = f.scheduler.Create(t.Context(), other)
	requireCode(t, errcode.AlreadyExists, err)
	_, err = f.scheduler.Create(t.Context(), request("a: {script: x}"))
	requireCode(t, errcode.QuotaExceeded, err)

	// Another user's ids are another user's.
	other.UserID, other.ProjectID = 6, 7
	_, err = f.scheduler.Create(t.Context(), other)
	require.NoError(t, err)
}

// roundTrips counts requests to the database.
type roundTrips struct{ n atomic.Int64 }

func (r *roundTrips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	r.n.Add(1)
	return ctx
}

func (*roundTrips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (r *roundTrips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	r.n.Add(1)
	return ctx
}

func (*roundTrips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (*roundTrips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TestLargePipelineCostsNoMoreRoundTrips creates pipelines of 2 and of 1000 jobs. The time depends on the machine, the
// number of round trips does not.
func TestLargePipelineCostsNoMoreRoundTrips(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	counted := &roundTrips{}
	cfg := f.pool.Config()
	cfg.ConnConfig.Tracer = counted
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	f.pool = pool
	f.scheduler = f.replica()
	create := func(jobs int) (schedule.Pipeline, int64) {
		var file strings.Builder
		file.WriteString("stages: [a, b]\n")
		for i := range jobs / 2 {
			fmt.Fprintf(&file, "a%d: {stage: a, script: x}\nb%d: {stage: b, script: x}\n", i, i)
		}
		before, began := counted.n.Load(), time.Now()
		p := f.create(file.String())
		t.Logf("created %d jobs in %s", jobs, time.Since(began))
		return p, counted.n.Load() - before
	}
	_, few := create(2)
	p, many := create(1000)
	require.Equal(t, few, many)
	require.Equal(t, 1000, f.count(`SELECT count(*) FROM jobs WHERE pipeline_id = $1`, p.ID))
	require.Equal(t, 1503, f.count(`SELECT count(*) FROM outbox`))
	id := f.take(p.ID, "a1").ID
	before, began := counted.n.Load(), time.Now()
	require.NoError(t, f.end(f.scheduler, id, succeeded))
	t.Logf("ended one of 1000 jobs in %s, with %d round trips", time.Since(began), counted.n.Load()-before)
}
