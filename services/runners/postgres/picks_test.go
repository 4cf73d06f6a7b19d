package postgres_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/assign"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
)

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	_, err := f.pool.Exec(f.t.Context(), sql, args...)
	require.NoError(f.t, err)
}

// define stores the definition of a job of pipeline 3.
func (f *fixture) define(name string, d job.Definition) {
	f.t.Helper()
	content, err := json.Marshal(d)
	require.NoError(f.t, err)
	f.exec(`INSERT INTO pipelines (id, project_id, organization_id) VALUES (3, 4, 1) ON CONFLICT DO NOTHING`)
	f.exec(`INSERT INTO definitions (pipeline_id, name, position, stage_index, run_when, content)
		VALUES (3, $1, 0, 0, 'on_success', $2)`, name, content)
}

// named stores a job of pipeline 3 that waits.
func (f *fixture) named(id int64, name string) job.Job {
	f.t.Helper()
	created := job.Create(job.Job{
		ID: id, PipelineID: 3, ProjectID: 4, OrganizationID: 1, Name: name, Timeout: time.Hour,
	}, now)
	waiting, err := created.Job.Enqueue(now)
	require.NoError(f.t, err)
	require.NoError(f.t, f.store(created, waiting))
	return waiting.Job
}

func (f *fixture) artifact(jobID int64, expires *time.Time) {
	f.t.Helper()
	f.exec(`INSERT INTO artifacts (job_id, type, format, filename, size, sha256, object, expires_at)
		VALUES ($1, 'archive', 'zip', 'artifacts.zip', 22, 'x', $1::bigint::text, $2)`, jobID, expires)
}

func TestJobDownloadsTheArtifactsOfTheLatestAttempts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	picks := postgres.Picks{Pool: f.pool, Jobs: f.jobs, Now: func() time.Time { return now }}
	definition := job.Definition{Script: []string{"true"}, ArtifactJobs: []string{"retried", "none", "expired", "built"}}
	f.define("test", definition)
	for _, name := range []string{"retried", "none", "expired", "built"} {
		f.define(name, job.Definition{Script: []string{"true"}})
	}
	first := f.named(10, "retried")
	canceled, err := first.Cancel(0, now)
	require.NoError(t, err)
	replaced, second, err := canceled.Job.Retry(11, now)
	require.NoError(t, err)
	require.NoError(t, f.store(canceled))
	require.NoError(t, f.store(replaced, second))
	f.named(12, "none")
	f.named(13, "expired")
	f.named(14, "built")
	for _, id := range []int64{10, 11, 14} {
		f.artifact(id, nil)
	}
	f.artifact(13, &now)
	reader, alone := f.named(15, "test"), f.named(16, "built")
	unknown := f.named(17, "unknown")
	materials, err := picks.Materials(t.Context(), []job.Job{reader, alone, unknown})
	require.NoError(t, err)
	require.Equal(t, map[int64]assign.Material{
		15: {Definition: &definition, Dependencies: []assign.Dependency{
			{JobID: 11, Name: "retried", Filename: "artifacts.zip", Size: 22},
			{JobID: 14, Name: "built", Filename: "artifacts.zip", Size: 22},
		}},
		16: {Definition: &job.Definition{Script: []string{"true"}}},
	}, materials)
}

func TestLaterClaimReplacesTheTokenOfTheEarlierOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	picks := postgres.Picks{Pool: f.pool, Jobs: f.jobs, Now: func() time.Time { return now }}
	waiting := f.pending(7)
	claim := func(j job.Job, hash byte) job.Job {
		taken, err := j.Take(job.Claim{RunnerID: 31, ManagerID: 77}, now)
		require.NoError(t, err)
		stored, err := picks.Claim(t.Context(), []assign.Claim{{Change: taken, TokenHash: [32]byte{hash}, ExpiresAt: now}})
		require.NoError(t, err)
		require.True(t, stored[7])
		return taken.Job
	}
	first := claim(waiting, 1)
	f.exec(`UPDATE claims SET confirmed_at = now()`)
	require.NoError(t, picks.Release(t.Context(), first))
	require.NoError(t, picks.Release(t.Context(), first), "a job that has changed meanwhile")
	jobs, err := picks.Read(t.Context(), []int64{7})
	require.NoError(t, err)
	claim(jobs[0], 2)
	require.NoError(t, f.tx(func(tx pgx.Tx) error {
		var hash []byte
		var number int
		var confirmed *time.Time
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT token_hash, number, confirmed_at FROM claims WHERE job_id = 7`).
			Scan(&hash, &number, &confirmed))
		require.EqualValues(t, 2, hash[0])
		require.Equal(t, 2, number)
		require.Nil(t, confirmed)
		return nil
	}))
	stored, err := picks.Claim(t.Context(), []assign.Claim{{Change: job.Change{Job: first}, ExpiresAt: now}})
	require.NoError(t, err)
	require.Empty(t, stored)
}

func TestOfClaimsStoredTogetherThoseOfChangedJobsLeaveNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	picks := postgres.Picks{Pool: f.pool, Jobs: f.jobs, Now: func() time.Time { return now }}
	claims := make([]assign.Claim, 3)
	for i := range claims {
		waiting := f.pending(int64(9 - i))
		taken, err := waiting.Take(job.Claim{RunnerID: 31, ManagerID: 77}, now)
		require.NoError(t, err)
		claims[i] = assign.Claim{Change: taken, TokenHash: [32]byte{byte(i)}, ExpiresAt: now}
		if waiting.ID == 8 {
			canceled, err := waiting.Cancel(5, now)
			require.NoError(t, err)
			require.NoError(t, f.store(canceled))
		}
	}
	stored, err := picks.Claim(t.Context(), claims)
	require.NoError(t, err)
	require.Equal(t, map[int64]bool{7: true, 9: true}, stored)
	require.Equal(t, 2, f.count(`SELECT count(*) FROM outbox WHERE subject LIKE '%.running'`))
	require.Equal(t, 0, f.count(`SELECT count(*) FROM outbox WHERE subject LIKE '%.8.running'`))
	require.Equal(t, 16, f.count(`SELECT sum(job_id) FROM claims`))
	read, err := postgres.ReadJobs(t.Context(), f.pool, 8)
	require.NoError(t, err)
	require.Equal(t, job.Canceled, read[0].State)
}
