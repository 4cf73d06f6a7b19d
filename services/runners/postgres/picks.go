package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/runners/assign"
	"lockstep.internal/services/runners/job"
)

// Picks stores which runner takes which job. It is most of an [assign.Store].
type Picks struct {
	Pool *pgxpool.Pool
	Jobs Jobs
	Now  func() time.Time
	// Definitions remembers those of jobs that wait. Nil remembers none.
	Definitions *Definitions
}

// Live returns all jobs that wait for a runner or are with one. Jobs of organizations that move do not wait.
func (p Picks) Live(ctx context.Context) ([]job.Job, error) { return LiveJobs(ctx, p.Pool) }

// Read returns those of the jobs that exist, without those of organizations that move and would wait for a runner.
func (p Picks) Read(ctx context.Context, ids []int64) ([]job.Job, error) {
	return readJobs(ctx, p.Pool, `id = ANY ($1) AND (state <> 'pending' OR `+notClosed+`) ORDER BY id`, ids)
}

// Materials returns the definition of each job, and the artifacts that it downloads, by its id. Definitions that
// [Picks.Changed] has read before take no query.
func (p Picks) Materials(ctx context.Context, jobs []job.Job) (map[int64]assign.Material, error) {
	materials := make(map[int64]assign.Material, len(jobs))
	var ids, pipelines []int64
	var names []string
	for i := range jobs {
		j := &jobs[i]
		if known := p.Definitions.get(j); known != nil {
			materials[j.ID] = assign.Material{Definition: known}
			continue
		}
		ids, pipelines, names = append(ids, j.ID), append(pipelines, j.PipelineID), append(names, j.Name)
	}
	if len(ids) > 0 {
		if err := p.readDefinitions(ctx, ids, pipelines, names, materials); err != nil {
			return nil, fmt.Errorf("read the definitions of %d jobs: %w", len(ids), err)
		}
	}
	var readers []int64
	for id, m := range materials {
		if len(m.Definition.ArtifactJobs) > 0 {
			readers = append(readers, id)
		}
	}
	if len(readers) > 0 {
		if err := p.dependencies(ctx, readers, materials); err != nil {
			return nil, fmt.Errorf("read the artifacts for %d jobs: %w", len(readers), err)
		}
	}
	return materials, nil
}

// readDefinitions adds definitions to materials. One that cannot be read has no material.
func (p Picks) readDefinitions(
	ctx context.Context, ids, pipelines []int64, names []string, materials map[int64]assign.Material,
) error {
	// A failed query is reported by its rows.
	rows, _ := p.Pool.Query(ctx, `
		SELECT asked.id, d.content FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS asked (id, pipeline_id, name)
		JOIN definitions AS d ON d.pipeline_id = asked.pipeline_id AND d.name = asked.name`, ids, pipelines, names)
	var id int64
	var content []byte
	_, err := pgx.ForEachRow(rows, []any{&id, &content}, func() error {
		if definition := decodeDefinition(content); definition != nil {
			materials[id] = assign.Material{Definition: definition}
		}
		return nil
	})
	return err //nolint:wrapcheck // the caller wraps it
}

// Changed returns those jobs that have another revision than the given one, by their id. It remembers the definitions
// of those that wait.
func (p Picks) Changed(ctx context.Context, revisions map[int64]int64) ([]job.Job, error) {
	ids, known := make([]int64, 0, len(revisions)), make([]int64, 0, len(revisions))
	for id, revision := range revisions {
		ids, known = append(ids, id), append(known, revision)
	}
	rows, _ := p.Pool.Query(ctx, readChanged, ids, known) // a failed query is reported by its rows
	jobs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (job.Job, error) {
		var r jobRow
		var content []byte
		err := row.Scan(append(r.targets(), &content)...)
		j := r.read()
		if content != nil {
			p.Definitions.put(&j, content)
		} else if j.State.Final() {
			p.Definitions.forget(&j)
		}
		return j, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("read %d jobs that may have changed: %w", len(ids), err)
	}
	return jobs, nil
}

const readChanged = `
	SELECT ` + jobColumns + `, definition FROM unnest($1::bigint[], $2::bigint[]) AS known (known_id, known_revision)
	JOIN jobs ON id = known_id AND revision <> known_revision
	LEFT JOIN LATERAL (
		SELECT content AS definition FROM definitions AS d
		WHERE state = 'pending' AND d.pipeline_id = jobs.pipeline_id AND d.name = jobs.name) AS d ON true
	WHERE state <> 'pending' OR ` + notClosed + ` ORDER BY id`

// dependencies adds the artifacts that jobs download to their materials.
func (p Picks) dependencies(ctx context.Context, ids []int64, materials map[int64]assign.Material) error {
	rows, _ := p.Pool.Query(ctx, `
		SELECT j.id, needed.id, needed.name, a.filename, a.size
		FROM jobs AS j JOIN definitions AS d ON d.pipeline_id = j.pipeline_id AND d.name = j.name
		CROSS JOIN LATERAL jsonb_array_elements_text(d.content -> 'artifact_jobs')
			WITH ORDINALITY AS dependency (name, position)
		JOIN jobs AS needed ON needed.pipeline_id = j.pipeline_id AND needed.name = dependency.name
			AND needed.retried_by = 0
		JOIN artifacts AS a ON a.job_id = needed.id AND a.type = 'archive'
			AND (a.expires_at IS NULL OR a.expires_at > $2)
		WHERE j.id = ANY ($1)
		ORDER BY j.id, dependency.position`, ids, p.Now())
	var id int64
	var d assign.Dependency
	_, err := pgx.ForEachRow(rows, []any{&id, &d.JobID, &d.Name, &d.Filename, &d.Size}, func() error {
		m := materials[id]
		m.Dependencies = append(m.Dependencies, d)
		materials[id] = m
		return nil
	})
	return err //nolint:wrapcheck // the caller wraps it
}

// storeClaims changes jobs and stores the claims of their runners and the events, and returns the ids of the jobs that
// have not changed before. Jobs of organizations that move do not change.
var storeClaims = `
	WITH wanted AS (
		SELECT id, revision, number, runner_id, manager_id, run_timeout_s, started_at, token_hash, expires_at, subject,
			header, data
		FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[],
			$7::timestamptz[], $8::bytea[], $9::timestamptz[], $10::text[], $11::text[], $12::bytea[])
			AS w (id, revision, number, runner_id, manager_id, run_timeout_s, started_at, token_hash, expires_at, subject,
				header, data)
	), job AS (
		UPDATE jobs SET state = '` + string(job.Running) + `', revision = w.revision, claims = w.number,
			runner_id = w.runner_id, manager_id = w.manager_id, run_timeout_s = w.run_timeout_s, started_at = w.started_at
		FROM wanted AS w
		WHERE jobs.id = w.id AND jobs.revision = w.revision - 1 AND jobs.` + notClosed + `
		RETURNING jobs.id, pg_notify('` + JobChannel + `', jobs.id::text)
	), claim AS (
		INSERT INTO claims (job_id, number, token_hash, expires_at, claimed_at)
		SELECT id, number, token_hash, expires_at, started_at FROM wanted JOIN job USING (id)
		ON CONFLICT (job_id) DO UPDATE SET number = excluded.number, token_hash = excluded.token_hash,
			expires_at = excluded.expires_at, claimed_at = excluded.claimed_at, confirmed_at = NULL, contacted_at = NULL
	), event AS (` + outbox.InsertRows("wanted JOIN job USING (id)") + `)
	SELECT id FROM job`

// claimColumns are the parameters of storeClaims.
type claimColumns struct {
	ids, revisions, runners, managers, timeouts []int64
	numbers                                     []int
	started, expires                            []time.Time
	hashes                                      [][]byte
	messages                                    []*nats.Msg
}

func (c *claimColumns) add(claim assign.Claim) {
	j := claim.Change.Job
	c.ids, c.revisions = append(c.ids, j.ID), append(c.revisions, j.Revision)
	c.runners, c.managers = append(c.runners, j.RunnerID), append(c.managers, j.ManagerID)
	c.timeouts, c.numbers = append(c.timeouts, seconds(j.RunTimeout)), append(c.numbers, j.Claims)
	c.started, c.expires = append(c.started, j.StartedAt), append(c.expires, claim.ExpiresAt)
	c.hashes = append(c.hashes, claim.TokenHash[:])
}

func (c *claimColumns) arguments() ([]any, error) {
	events, err := outbox.RowsOf(c.messages...)
	if err != nil {
		return nil, fmt.Errorf("publish %d claims: %w", len(c.ids), err)
	}
	return []any{
		c.ids, c.revisions, c.numbers, c.runners, c.managers, c.timeouts, c.started, c.hashes, c.expires, events.Subjects,
		events.Headers, events.Data,
	}, nil
}

// Claim stores the claims of jobs that have not changed and whose organization does not move, and returns the ids of
// these jobs. It takes one round trip.
func (p Picks) Claim(ctx context.Context, claims []assign.Claim) (map[int64]bool, error) {
	// Everybody locks jobs in this order.
	slices.SortFunc(claims, func(a, b assign.Claim) int { return cmp.Compare(a.Change.Job.ID, b.Change.Job.ID) })
	var columns claimColumns
	organizations := make([]int64, len(claims))
	for i, c := range claims {
		messages, err := p.Jobs.Encoder.Changes(ctx, c.Change)
		if err != nil {
			return nil, err
		}
		columns.messages = append(columns.messages, messages...)
		columns.add(c)
		organizations[i] = c.Change.Job.OrganizationID
	}
	arguments, err := columns.arguments()
	if err != nil {
		return nil, err
	}
	stored := make(map[int64]bool, len(claims))
	var batch pgx.Batch
	// The statement after this one sees what a move has stored before it released the lock.
	batch.Queue(shareOrganizations, organizations)
	batch.Queue(storeClaims, arguments...).Query(func(rows pgx.Rows) error {
		var id int64
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error { stored[id] = true; return nil })
		return err //nolint:wrapcheck // wrapped below
	})
	// A batch that a pool sends is a transaction.
	if err := p.Pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("store %d claims: %w", len(claims), err)
	}
	return stored, nil
}

// Release gives back a job that its runner never got. It does nothing if the job has changed meanwhile.
func (p Picks) Release(ctx context.Context, claimed job.Job) error {
	released, err := claimed.Release(p.Now())
	if err != nil {
		return err
	}
	err = postgres.InTx(ctx, p.Pool, func(tx pgx.Tx) error { return p.Jobs.Store(ctx, tx, released) })
	if errors.Is(err, ErrStale) {
		return nil
	}
	return err
}
