package stuck_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/stuck"
)

var now = time.Date(2026, 3, 2, 10, 40, 0, 0, time.UTC)

func TestJobFailsWhenItWaitsForTooLong(t *testing.T) {
	t.Parallel()
	rules := stuck.DefaultRules()
	for name, test := range map[string]struct {
		state   job.State
		waited  time.Duration
		matched bool
		want    job.FailureReason
	}{
		"waits for a runner that is busy":  {job.Pending, 23 * time.Hour, true, ""},
		"waits for a day":                  {job.Pending, 24 * time.Hour, true, job.StuckOrTimeout},
		"no runner could take it, yet":     {job.Pending, 59 * time.Minute, false, ""},
		"no runner could take it":          {job.Pending, time.Hour, false, job.NoMatchingRunner},
		"runs":                             {job.Running, 48 * time.Hour, false, ""},
		"no runner could take it in a day": {job.Pending, 25 * time.Hour, false, job.StuckOrTimeout},
	} {
		waiting := job.Job{State: test.state, PendingSince: now.Add(-test.waited)}
		reason, due := stuck.Verdict(waiting, test.matched, now, rules)
		require.Equal(t, test.want, reason, name)
		require.Equal(t, test.want != "", due, name)
	}
}

func TestPausedRunnerCouldTakeAJobLater(t *testing.T) {
	t.Parallel()
	j := job.Job{ID: 7, ProjectID: 4, Tags: []string{"linux"}}
	paused := &runner.Runner{ID: 1, Type: runner.InstanceType}
	paused.Tags, paused.Paused = []string{"linux"}, true
	other := &runner.Runner{ID: 2, Type: runner.InstanceType}
	other.Tags = []string{"windows"}
	require.False(t, stuck.Matched(j, runner.Place{}, nil, now))
	require.False(t, stuck.Matched(j, runner.Place{}, []*runner.Runner{other}, now))
	require.True(t, stuck.Matched(j, runner.Place{}, []*runner.Runner{other, paused}, now))
}
