package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/runners/assign"
	"lockstep.internal/services/runners/job"
)

// Picks stores which runner takes which job. It is most of an [assign.Store].
type Picks struct {
	Pool *pgxpool.Pool
	Jobs Jobs
	Now  func() time.Time
}

// Live returns all jobs that wait for a runner or are with one. Jobs of organizations that move do not wait.
func (p Picks) Live(ctx context.Context) ([]job.Job, error) { return LiveJobs(ctx, p.Pool) }

// Read returns those of the jobs that exist, without those of organizations that move and would wait for a runner.
func (p Picks) Read(ctx context.Context, ids []int64) ([]job.Job, error) {
	return readJobs(ctx, p.Pool, `id = ANY ($1) AND (state <> 'pending' OR `+notClosed+`) ORDER BY id`, ids)
}

// Materials returns the definition of each job, and the artifacts that it downloads, by its id.
func (p Picks) Materials(ctx context.Context, jobs []job.Job) (map[int64]assign.Material, error) {
	ids, pipelines, names := make([]int64, len(jobs)), make([]int64, len(jobs)), make([]string, len(jobs))
	for i := range jobs {
		ids[i], pipelines[i], names[i] = jobs[i].ID, jobs[i].PipelineID, jobs[i].Name
	}
	materials := make(map[int64]assign.Material, len(jobs))
	var readers []int64
	// A failed query is reported by its rows.
	rows, _ := p.Pool.Query(ctx, `
		SELECT asked.id, d.content FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS asked (id, pipeline_id, name)
		JOIN definitions AS d ON d.pipeline_id = asked.pipeline_id AND d.name = asked.name`, ids, pipelines, names)
	var id int64
	var content []byte
	_, err := pgx.ForEachRow(rows, []any{&id, &content}, func() error {
		var definition job.Definition
		if json.Unmarshal(content, &definition) == nil {
			materials[id] = assign.Material{Definition: &definition}
			if len(definition.ArtifactJobs) > 0 {
				readers = append(readers, id)
			}
		}
		return nil // a definition that cannot be read has no material
	})
	if err == nil && len(readers) > 0 {
		err = p.dependencies(ctx, readers, materials)
	}
	if err != nil {
		return nil, fmt.Errorf("read the definitions of %d jobs: %w", len(jobs), err)
	}
	return materials, nil
}

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

// Claim stores the claims of jobs that have not changed and whose organization does not move, and returns the ids of
// these jobs.
func (p Picks) Claim(ctx context.Context, claims []assign.Claim) (map[int64]bool, error) {
	// Everybody locks jobs in this order.
	slices.SortFunc(claims, func(a, b assign.Claim) int { return int(min(max(a.Change.Job.ID-b.Change.Job.ID, -1), 1)) })
	batch := transitions{Jobs: p.Jobs}
	organizations := make([]int64, len(claims))
	for i, c := range claims {
		organizations[i] = c.Change.Job.OrganizationID
	}
	// Each statement after this one sees what a move has stored before it released the lock.
	batch.batch.Queue(shareOrganizations, organizations)
	for _, c := range claims {
		err := batch.add(ctx, c.Change, storeClaim, updated(c.Change.Job), c.TokenHash[:], c.ExpiresAt)
		if err != nil {
			return nil, err
		}
	}
	done, err := batch.send(ctx, p.Pool)
	if err != nil {
		return nil, err
	}
	stored := make(map[int64]bool, len(done))
	for _, c := range done {
		stored[c.Job.ID] = true
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
