package move_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/runner"
)

func in(phase move.Phase) move.Move {
	return move.Move{
		ID: "m", OrganizationID: 7, Cell: "two", Phase: phase, StartedAt: start, CancelAt: start.Add(10 * time.Minute),
	}
}

func TestEachPhaseHasAnActionAndANextPhase(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		phase  move.Phase
		action move.Action
		next   move.Phase
	}{
		{move.Copying, move.ActionCopy, move.Moved},
		{move.Moved, move.ActionOpen, move.HandingOver},
		{move.HandingOver, move.ActionHandOver, move.Ending},
		{move.Ending, move.ActionEnd, move.Done},
		{move.Canceling, move.ActionUndo, move.Canceled},
	} {
		m, action := in(test.phase).Next(start)
		require.Equal(t, test.action, action)
		require.Equal(t, in(test.phase), m)
		after := m.Succeeded(start)
		require.Equal(t, test.next, after.Phase)
		require.Equal(t, test.next.Ended(), !after.EndedAt.IsZero())
	}
	for _, phase := range []move.Phase{move.Done, move.Canceled, move.Arriving, move.Open} {
		_, action := in(phase).Next(start.Add(time.Hour))
		require.Equal(t, move.ActionNone, action, phase)
	}
}

func TestOnlyAMoveThatCopiesIsCanceled(t *testing.T) {
	t.Parallel()
	late := start.Add(10 * time.Minute)
	m, action := in(move.Copying).Next(late)
	require.Equal(t, move.Canceling, m.Phase)
	require.Equal(t, move.ActionUndo, action)
	require.Equal(t, "not copied within 10m0s", m.Message)
	for _, phase := range []move.Phase{move.Moved, move.HandingOver, move.Ending} {
		m, _ := in(phase).Next(late)
		require.Equal(t, phase, m.Phase, "the point of no return is behind")
		_, err := in(phase).Cancel()
		requireCode(t, errcode.FailedPrecondition, err)
	}
	canceled, err := in(move.Copying).Cancel()
	require.NoError(t, err)
	require.Equal(t, move.Canceling, canceled.Phase)
	again, err := canceled.Cancel()
	require.NoError(t, err)
	require.Equal(t, canceled, again)
}

func TestErrorThatStaysCancelsBeforeThePointOfNoReturn(t *testing.T) {
	t.Parallel()
	away := fault.New(errcode.Unavailable, "away")
	refused := fault.New(errcode.FailedPrecondition, "the name is taken")
	invalid := fault.New(errcode.Unauthenticated, "the token expired")
	for _, test := range []struct {
		phase   move.Phase
		err     error
		next    move.Phase
		message string
	}{
		{move.Copying, away, move.Copying, "away"},
		{move.Copying, refused, move.Canceling, "the name is taken"},
		{move.Copying, errors.New("internal"), move.Copying, ""},
		{move.Copying, invalid, move.Copying, "the token expired; run the command again to give the move new tokens"},
		{move.Moved, refused, move.Moved, "the name is taken"},
		{move.HandingOver, refused, move.HandingOver, "the name is taken"},
		{move.Ending, away, move.Ending, "away"},
		{move.Canceling, away, move.Canceling, "; not undone yet: away"},
	} {
		failed := in(test.phase).Failed(test.err)
		require.Equal(t, test.next, failed.Phase, test)
		if test.message != "" {
			require.Equal(t, test.message, failed.Message)
		}
	}
	m := in(move.Canceling)
	m.Message = "the name is taken"
	m = m.Failed(away).Failed(away)
	require.Equal(t, "the name is taken; not undone yet: away", m.Message)
	require.Equal(t, "the name is taken", m.Succeeded(start).Message)
	long := in(move.Moved).Failed(fault.New(errcode.Unavailable, "%s", strings.Repeat("x", 10_000)))
	require.Len(t, long.Message, 2000)
	cut := in(move.Moved).Failed(fault.New(errcode.Unavailable, "x%s", strings.Repeat("ü", 10_000)))
	require.True(t, utf8.ValidString(cut.Message), "PostgreSQL stores no half of a character")
}

func TestReportNamesJobsWithoutARunnerThere(t *testing.T) {
	t.Parallel()
	now := start
	withTags := func(id int64, of runner.Type, organization int64, tags ...string) *runner.Runner {
		return &runner.Runner{
			ID: id, Type: of, OrganizationID: organization, GroupID: 2, Settings: runner.Settings{Tags: tags},
		}
	}
	waiting := func(id int64, tags ...string) job.Job {
		return job.Job{ID: id, ProjectID: project, OrganizationID: 7, Tags: tags, State: job.Pending}
	}
	report := move.Situation{
		OrganizationID: 7, Now: now, Waiting: []job.Job{waiting(1, "own"), waiting(2, "here"), waiting(3, "there")},
		Runners: []*runner.Runner{
			withTags(11, runner.GroupType, 7, "own"), withTags(12, runner.InstanceType, 0, "here"),
			withTags(13, runner.GroupType, 8, "here"), withTags(14, runner.InstanceType, 0, "other"),
		},
		There: []*runner.Runner{withTags(21, runner.InstanceType, 0, "there")},
		Place: func(int64) (runner.Place, bool) {
			return runner.Place{Organization: 7, Groups: []int64{2}}, true
		},
	}.Report()
	require.Len(t, report.Unserved, 1)
	require.EqualValues(t, 2, report.Unserved[0].ID)
	require.Equal(t, []int64{12}, report.Staying)
	require.Equal(t, 1, report.Runners)
}
