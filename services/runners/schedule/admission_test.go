package schedule_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/schedule"
)

// newAdmissionFixture is a fixture in which jobs wait for admission.
func newAdmissionFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.scheduler.Admission = schedule.Admission{Enabled: true, Timeout: time.Minute}
	return f
}

// decide applies a decision about the current preparation of a job.
func (f *fixture) decide(pipelineID int64, name string, d job.Decision) {
	f.t.Helper()
	j := f.job(pipelineID, name)
	d.Preparation = j.Revision
	f.decideJob(j.ID, d)
}

func (f *fixture) decideJob(id int64, d job.Decision) {
	f.t.Helper()
	require.NoError(f.t, f.store().InTx(f.t.Context(), func(tx pgx.Tx) error {
		return f.scheduler.Decide(f.t.Context(), tx, id, d)
	}))
}

var admitted, denied = job.Decision{Outcome: job.Admitted}, job.Decision{Outcome: job.Denied, Reason: "not today"}

// preparations returns the events of a job that begin its admission.
func (f *fixture) preparations(id int64) []events.JobPreparing {
	f.t.Helper()
	rows, err := f.pool.Query(f.t.Context(), `
		SELECT data FROM outbox WHERE split_part(subject, '.', 5) = $1::bigint::text AND subject LIKE '%.preparing'
		ORDER BY id`, id)
	require.NoError(f.t, err)
	raw, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	require.NoError(f.t, err)
	out := make([]events.JobPreparing, len(raw))
	for i := range raw {
		decoded, err := events.Decode[events.JobPreparing](raw[i])
		require.NoError(f.t, err)
		out[i] = *decoded
	}
	return out
}

func TestJobsWaitForAdmissionBeforeTheyWaitForARunner(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	r := request("stages: [a, b]\na: {stage: a, script: x, tags: [linux], variables: {GITLAB_USER_ID: '1', OWN: x}}\n" +
		"b: {stage: b, script: x}")
	r.Ref = "main"
	r.Variables = []job.Variable{
		{Key: "TOKEN", Value: "a secret value", Masked: true}, {Key: "CI_PROJECT_ID", Value: "another secret", Masked: true},
	}
	p, err := f.scheduler.Create(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, job.Preparing, f.pipeline(p.ID).State.State)
	a := f.job(p.ID, "a")
	require.Equal(t, []string{"created", "preparing"}, f.events(a.ID))
	require.Equal(t, start, a.PreparingSince)
	begun := f.preparations(a.ID)
	require.Len(t, begun, 1)
	require.Equal(t, int(a.Revision), begun[0].Preparation)
	require.Equal(t, user, begun[0].UserID)
	require.Equal(t, "main", begun[0].Ref)
	require.Equal(t, start.Add(time.Minute), begun[0].Deadline)
	variables := begun[0].Variables
	require.Equal(t, "5", variables["GITLAB_USER_ID"], "a variable of the file does not change who the user is")
	require.Equal(t, "4", variables["CI_PROJECT_ID"])
	require.Equal(t, "a", variables["CI_JOB_NAME"])
	require.NotEmpty(t, variables["CI_JOB_ID"])
	require.NotContains(t, variables, "OWN")
	require.Zero(t, f.count(`SELECT count(*) FROM outbox WHERE convert_from(data, 'UTF8') LIKE '%secret%'`))

	f.decide(p.ID, "a", job.Decision{
		Outcome: job.Admitted, Tags: []string{"linux", "zone_a"}, AcceptedRunners: []int64{31},
	})
	a = f.job(p.ID, "a")
	require.Equal(t, job.Pending, a.State)
	require.Equal(t, []string{"linux", "zone_a"}, a.Tags)
	require.Equal(t, []string{"created", "preparing", "admitted", "pending"}, f.events(a.ID))
	f.run(p.ID, "a", succeeded)
	require.Equal(t, job.Preparing, f.states(p.ID)["b"])
}

func TestDeniedJobFailsAndThePipelineContinuesIfThatIsAllowed(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	p := f.create("stages: [a, b]\na: {stage: a, script: x, retry: 2, allow_failure: {on_denied_admission: true}}\n" +
		"b: {stage: b, script: x}")
	f.decide(p.ID, "a", denied)
	a := f.job(p.ID, "a")
	require.Equal(t, job.Failed, a.State)
	require.Equal(t, job.DeniedAdmission, a.Reason)
	require.Equal(t, "not today", a.Admission.Reason)
	require.Equal(t, []string{"created", "preparing", "rejected"}, f.events(a.ID))
	require.Zero(t, a.RetriedBy, "it is not retried")
	require.Equal(t, job.Preparing, f.states(p.ID)["b"])
	f.decide(p.ID, "b", denied)
	done := f.pipeline(p.ID)
	require.Equal(t, job.Failed, done.State.State)
	require.Equal(t, start, done.FinishedAt)
}

func TestRetryOfAnAdmittedJobIsAdmittedAnew(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	p := f.create("a: {script: x, tags: [linux]}")
	first := f.job(p.ID, "a")
	f.decide(p.ID, "a", job.Decision{Outcome: job.Admitted, Tags: []string{"zone_a"}})
	f.run(p.ID, "a", failed)
	id, err := f.scheduler.RetryJob(t.Context(), first.ID)
	require.NoError(t, err)
	second := f.job(p.ID, "a")
	require.Equal(t, id, second.ID)
	require.Equal(t, job.Preparing, second.State)
	require.Equal(t, []string{"linux"}, second.Tags)
	require.Nil(t, second.Admission)
	f.decideJob(first.ID, job.Decision{Outcome: job.Admitted, Preparation: 2})
	f.decideJob(id, job.Decision{Outcome: job.Admitted, Preparation: second.Revision + 1})
	f.decideJob(12345, admitted)
	require.Equal(t, second, f.job(p.ID, "a"), "decisions about other jobs and preparations change nothing")
}

func TestDecisionAboutACanceledJobChangesNothing(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	p := f.create("a: {script: x}")
	j := f.job(p.ID, "a")
	require.NoError(t, f.scheduler.CancelPipeline(t.Context(), p.ID, user))
	canceled := f.job(p.ID, "a")
	require.Equal(t, job.Canceled, canceled.State)
	f.decideJob(j.ID, job.Decision{Outcome: job.Admitted, Preparation: j.Revision})
	require.Equal(t, canceled, f.job(p.ID, "a"))
}

func TestJobWithoutADecisionFailsAfterTheDeadline(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	p := f.create("a: {script: x, allow_failure: {on_denied_admission: true}}")
	f.advance(time.Minute + 9*time.Second)
	require.NoError(t, f.scheduler.EndPreparations(t.Context()))
	require.Equal(t, job.Preparing, f.states(p.ID)["a"], "the admission service reports a timeout itself")
	f.advance(time.Second)
	var group sync.WaitGroup
	for range 4 {
		replica := f.replica()
		replica.Admission = f.scheduler.Admission
		group.Go(func() {
			if err := replica.EndPreparations(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	a := f.job(p.ID, "a")
	require.Equal(t, job.Failed, a.State)
	require.Equal(t, job.AdmissionTimeout, a.Reason)
	require.Equal(t, "admission did not decide until 2026-03-04T05:07:00Z", a.Admission.Reason)
	require.Equal(t, []string{"created", "preparing", "rejected"}, f.events(a.ID))
	require.True(t, f.pipeline(p.ID).Warnings)
}

func TestSwitchingAdmissionOffAdmitsTheJobsThatWait(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	p := f.create("a: {script: x, tags: [linux]}\nb: {script: x}")
	without := f.replica()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- without.RunAdmission(ctx) }()
	require.Eventually(t, func() bool {
		states := f.states(p.ID)
		return states["a"] == job.Pending && states["b"] == job.Pending
	}, 30*time.Second, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	a := f.job(p.ID, "a")
	require.Nil(t, a.Admission)
	require.Equal(t, []string{"linux"}, a.Tags)
	require.Equal(t, []string{"created", "preparing", "pending"}, f.events(a.ID))
}

func TestAdmissionBeginsAgainForAJobThatLostItsPreparation(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	p := f.create("a: {script: x}")
	before := f.job(p.ID, "a")
	_, err := f.pool.Exec(t.Context(), `UPDATE jobs SET preparing_since = NULL`)
	require.NoError(t, err)
	f.advance(time.Second)
	require.NoError(t, f.scheduler.EndPreparations(t.Context()))
	again := f.job(p.ID, "a")
	require.Equal(t, before.Revision+1, again.Revision)
	require.Equal(t, start.Add(time.Second), again.PreparingSince)
	begun := f.preparations(again.ID)
	require.Len(t, begun, 2)
	require.Equal(t, int(again.Revision), begun[1].Preparation)
	f.decideJob(again.ID, job.Decision{Outcome: job.Admitted, Preparation: before.Revision})
	require.Equal(t, job.Preparing, f.states(p.ID)["a"], "a decision about the first preparation")
	f.decide(p.ID, "a", admitted)
	require.Equal(t, job.Pending, f.states(p.ID)["a"])
}

// TestNothingIsLeftOfADecisionThatWasKilled rolls back after the decision was applied.
func TestNothingIsLeftOfADecisionThatWasKilled(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	p := f.create("stages: [a, b]\na: {stage: a, script: x}\nb: {stage: b, script: x, when: always}")
	j := f.job(p.ID, "a")
	before, count := f.attempts(p.ID), f.count(`SELECT count(*) FROM outbox`)
	err := f.store().InTx(t.Context(), func(tx pgx.Tx) error {
		d := denied
		d.Preparation = j.Revision
		if err := f.scheduler.Decide(t.Context(), tx, j.ID, d); err != nil {
			return err
		}
		return errStopped
	})
	require.ErrorIs(t, err, errStopped)
	require.Equal(t, before, f.attempts(p.ID))
	require.Equal(t, count, f.count(`SELECT count(*) FROM outbox`))
}

func TestPrerequisitesAreKeptAsTheyWereLastReported(t *testing.T) {
	t.Parallel()
	f := newAdmissionFixture(t)
	p := f.create("a: {script: x}")
	id := f.job(p.ID, "a").ID
	put := func(jobID, preparation int64, list ...job.Prerequisite) {
		require.NoError(t, f.store().InTx(t.Context(), func(tx pgx.Tx) error {
			return postgres.PutPrerequisites(t.Context(), tx, jobID, preparation, list...)
		}))
	}
	first := job.Prerequisite{ControllerID: 12, Name: "zones", Level: "group", Position: 2, State: "asked", AskedAt: start}
	second := job.Prerequisite{ControllerID: 9, Name: "list", Level: "project", Position: 1, State: "accepted"}
	put(id, 1, first)
	put(id, 2, first)
	put(id, 2, second)
	first.State, first.Reason, first.AddedTags = "accepted", "in zone_a", []string{"zone_a"}
	put(id, 2, first)
	put(12345, 2, first)
	got, err := postgres.Views{Pool: f.pool}.Prerequisites(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, []job.Prerequisite{second, first}, got)
	require.Zero(t, f.count(`SELECT count(*) FROM prerequisites WHERE job_id = 12345`), "the job does not exist")
}
