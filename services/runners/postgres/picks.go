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
	const asked = `unnest($1::bigint[], $2::bigint[], $3::text[]) AS asked (id, pipeline_id, name)
		JOIN definitions AS d ON d.pipeline_id = asked.pipeline_id AND d.name = asked.name`
	materials := make(map[int64]assign.Material, len(jobs))
	var batch pgx.Batch
	batch.Queue(`SELECT asked.id, d.content FROM `+asked, ids, pipelines, names).Query(func(rows pgx.Rows) error {
		var id int64
		var content []byte
		_, err := pgx.ForEachRow(rows, []any{&id, &content}, func() error {
			var definition job.Definition
			if json.Unmarshal(content, &definition) == nil {
				materials[id] = assign.Material{Definition: &definition}
			}
			return nil // a definition that cannot be read has no material
		})
		return err //nolint:wrapcheck // wrapped below
	})
	batch.Queue(`
		SELECT asked.id, needed.id, needed.name, a.filename, a.size
		FROM `+asked+`
		CROSS JOIN LATERAL jsonb_array_elements_text(coalesce(d.content -> 'artifact_jobs', '[]'))
			WITH ORDINALITY AS dependency (name, position)
		JOIN jobs AS needed ON needed.pipeline_id = asked.pipeline_id AND needed.name = dependency.name
			AND needed.retried_by = 0
		JOIN artifacts AS a ON a.job_id = needed.id AND a.type = 'archive'
			AND (a.expires_at IS NULL OR a.expires_at > $4)
		ORDER BY asked.id, dependency.position`, ids, pipelines, names, p.Now()).Query(func(rows pgx.Rows) error {
		var id int64
		var d assign.Dependency
		_, err := pgx.ForEachRow(rows, []any{&id, &d.JobID, &d.Name, &d.Filename, &d.Size}, func() error {
			if m, found := materials[id]; found {
				m.Dependencies = append(m.Dependencies, d)
				materials[id] = m
			}
			return nil
		})
		return err //nolint:wrapcheck // wrapped below
	})
	if err := p.Pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("read the definitions of %d jobs: %w", len(jobs), err)
	}
	return materials, nil
}

// Claim stores the claims of jobs that have not changed and whose organization does not move, and returns the ids of
// these jobs.
func (p Picks) Claim(ctx context.Context, claims []assign.Claim) (map[int64]bool, error) {
	// Everybody locks jobs in this order.
	slices.SortFunc(claims, func(a, b assign.Claim) int { return int(min(max(a.Change.Job.ID-b.Change.Job.ID, -1), 1)) })
	stored := make(map[int64]bool, len(claims))
	err := postgres.InTx(ctx, p.Pool, func(tx pgx.Tx) error {
		changes, err := openChanges(ctx, tx, claims)
		if err != nil {
			return err
		}
		done, err := p.Jobs.Try(ctx, tx, changes...)
		if err != nil {
			return err
		}
		for _, c := range done {
			stored[c.Job.ID] = true
		}
		return insertClaims(ctx, tx, claims, stored)
	})
	if err != nil {
		return nil, err
	}
	return stored, nil
}

// openChanges locks the organizations of claims, and returns the changes of those that may be changed.
func openChanges(ctx context.Context, tx pgx.Tx, claims []assign.Claim) ([]job.Change, error) {
	organizations := make([]int64, len(claims))
	for i, c := range claims {
		organizations[i] = c.Change.Job.OrganizationID
	}
	closed := map[int64]bool{}
	var batch pgx.Batch
	batch.Queue(shareOrganizations, organizations)
	batch.Queue(`SELECT organization_id FROM closed_organizations WHERE organization_id = ANY ($1)`, organizations).
		Query(func(rows pgx.Rows) error {
			var id int64
			_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
				closed[id] = true
				return nil
			})
			return err //nolint:wrapcheck // wrapped below
		})
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("lock the organizations of %d jobs: %w", len(claims), err)
	}
	changes := make([]job.Change, 0, len(claims))
	for _, c := range claims {
		if !closed[c.Change.Job.OrganizationID] {
			changes = append(changes, c.Change)
		}
	}
	return changes, nil
}

func insertClaims(ctx context.Context, tx pgx.Tx, claims []assign.Claim, stored map[int64]bool) error {
	var batch pgx.Batch
	for _, c := range claims {
		if j := c.Change.Job; stored[j.ID] {
			batch.Queue(`
				INSERT INTO claims (job_id, number, token_hash, expires_at, claimed_at) VALUES ($1, $2, $3, $4, $5)
				ON CONFLICT (job_id) DO UPDATE SET number = excluded.number, token_hash = excluded.token_hash,
					expires_at = excluded.expires_at, claimed_at = excluded.claimed_at, confirmed_at = NULL,
					contacted_at = NULL`, j.ID, j.Claims, c.TokenHash[:], c.ExpiresAt, j.StartedAt)
		}
	}
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("store the claims of %d jobs: %w", batch.Len(), err)
	}
	return nil
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
