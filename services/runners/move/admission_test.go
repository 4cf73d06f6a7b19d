package move_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/schedule"
)

// TestJobsThatWaitForAdmissionAreAdmittedInTheOtherCell moves one that waits for admission, and one that was admitted.
func TestJobsThatWaitForAdmissionAreAdmittedInTheOtherCell(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, c := range []*cell{f.one, f.two} {
		c.scheduler.Admission = schedule.Admission{Enabled: true, Timeout: time.Hour}
	}
	decide := func(c *cell, id, preparation int64) {
		require.NoError(t, c.scheduler.Store.InTx(t.Context(), func(tx pgx.Tx) error {
			err := postgres.PutPrerequisites(t.Context(), tx, id, preparation, job.Prerequisite{
				ControllerID: 12, Name: "zones", Level: "group", Position: 1, State: "accepted",
			})
			if err != nil {
				return err
			}
			return c.scheduler.Decide(t.Context(), tx, id, job.Decision{
				Preparation: preparation, Outcome: job.Admitted, Tags: []string{"zone_a"}, AcceptedRunners: []int64{31},
			})
		}))
	}
	r, _ := f.one.newRunner()
	waits, goesOn := f.one.create("a: {script: x}"), f.one.create("a: {script: x}")
	before := f.one.job(waits.ID, "a")
	admitted := f.one.job(goesOn.ID, "a")
	decide(f.one, admitted.ID, admitted.Revision)
	f.begin(f.one, f.two)
	f.advance(2 * time.Minute)
	require.NoError(t, f.one.scheduler.EndPreparations(t.Context()))
	require.NoError(t, f.driver(f.one).Once(t.Context()))
	require.Equal(t, move.Done, f.latest(f.one).Phase, f.latest(f.one).Message)
	require.Zero(t, f.one.count(`SELECT count(*) FROM prerequisites`))

	there := f.two.job(goesOn.ID, "a")
	require.Equal(t, job.Pending, there.State)
	require.Equal(t, []string{"zone_a"}, there.Tags)
	require.Equal(t, []int64{31}, there.Admission.AcceptedRunners)
	kept, err := postgres.Views{Pool: f.two.pool}.Prerequisites(t.Context(), there.ID)
	require.NoError(t, err)
	require.Len(t, kept, 1)

	arrived := f.two.job(waits.ID, "a")
	require.Equal(t, job.Preparing, arrived.State)
	require.NoError(t, f.two.scheduler.EndPreparations(t.Context()))
	again := f.two.job(waits.ID, "a")
	require.Equal(t, arrived.Revision+1, again.Revision)
	require.Equal(t, 1, f.two.count(`SELECT count(*) FROM outbox WHERE subject LIKE '%.'||$1::bigint||'.preparing'`, again.ID))
	decide(f.two, again.ID, before.Revision)
	require.Equal(t, job.Preparing, f.two.job(waits.ID, "a").State, "a decision of the other cell")
	decide(f.two, again.ID, again.Revision)
	require.Equal(t, job.Pending, f.two.job(waits.ID, "a").State)

	// Both streams RUNNERS know where the runner is.
	const published = `SELECT count(*) FROM outbox WHERE subject LIKE '%.runner.'||$1::bigint
		AND (convert_from(data, 'UTF8')::jsonb ->> 'deleted' = 'true') IS NOT DISTINCT FROM $2`
	require.Equal(t, 1, f.one.count(published, r.ID, true))
	require.Equal(t, 1, f.two.count(`SELECT count(*) FROM outbox WHERE subject LIKE '%.runner.'||$1::bigint`, r.ID))
	require.Zero(t, f.two.count(`SELECT count(*) FROM runners WHERE NOT published`))
}
