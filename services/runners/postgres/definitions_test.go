package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
)

// TestDefinitionsOfChangedJobsAreRemembered removes the definitions after they were read: only the memory has them.
func TestDefinitionsOfChangedJobsAreRemembered(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	j := f.pending(7)
	_, err := f.pool.Exec(t.Context(), `INSERT INTO pipelines (id, project_id, organization_id) VALUES ($1, 4, 1)`,
		j.PipelineID)
	require.NoError(t, err)
	const insert = `INSERT INTO definitions (pipeline_id, name, position, stage_index, run_when, content)
		VALUES ($1, $2, 0, 0, 'on_success', '{"script": ["true"]}')`
	_, err = f.pool.Exec(t.Context(), insert, j.PipelineID, j.Name)
	require.NoError(t, err)
	read := func(limit int, revision int64) (changed []job.Job, found bool) {
		picks := postgres.Picks{
			Pool: f.pool, Jobs: f.jobs, Now: time.Now, Definitions: postgres.NewDefinitions(limit),
		}
		changed, err := picks.Changed(t.Context(), map[int64]int64{j.ID: revision, 99: 0})
		require.NoError(t, err)
		_, err = f.pool.Exec(t.Context(), `DELETE FROM definitions`)
		require.NoError(t, err)
		materials, err := picks.Materials(t.Context(), []job.Job{j})
		require.NoError(t, err)
		_, err = f.pool.Exec(t.Context(), insert, j.PipelineID, j.Name)
		require.NoError(t, err)
		return changed, materials[j.ID].Definition != nil
	}
	changed, found := read(1000, 0)
	require.Equal(t, []job.Job{j}, changed)
	require.True(t, found)
	changed, found = read(1000, j.Revision)
	require.Empty(t, changed, "this revision is known")
	require.False(t, found)
	_, found = read(5, 0)
	require.False(t, found, "there is no room")
}
