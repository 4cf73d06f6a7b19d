package workspace_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
)

// idleSimulation is a workspace whose activity becomes known late.
type idleSimulation struct {
	t        *testing.T
	w        fixture
	policies workspace.AgePolicies
	clock    time.Time
	// activity is all of it, also what is not read yet.
	activity []time.Time
	// since is the start of the workspace, extended the end of its extension.
	since, extended time.Time
	// warnedAt is the last warning.
	warnedAt time.Time
}

// lastActivity returns the start or the last activity until a time.
func (s *idleSimulation) lastActivity(until time.Time) time.Time {
	last := s.since
	for _, a := range s.activity {
		if !a.After(until) && a.After(last) {
			last = a
		}
	}
	return last
}

// read makes all activity known.
func (s *idleSimulation) read() {
	for _, a := range s.activity {
		before := s.w.DesiredState
		s.w.Workspace, _ = s.w.Active(workspace.Activity{At: a, UserID: 9})
		require.Equal(s.t, before, s.w.DesiredState, "activity changes no desired state")
	}
	s.policies.ActivityReadUntil = s.clock
}

func (s *idleSimulation) setDesired(to workspace.DesiredState) {
	before := s.w.DesiredState
	after, err := s.w.SetDesired(to, 9, s.clock)
	require.NoError(s.t, err)
	if s.w = after; after.DesiredState != before {
		s.since, s.warnedAt, s.extended = s.clock, time.Time{}, time.Time{}
	}
}

func (s *idleSimulation) extend(by time.Duration) {
	after, err := s.w.Extend(by, s.clock)
	if err != nil {
		require.NotEqual(s.t, workspace.DesiredRunning, s.w.DesiredState)
		return
	}
	s.w.Workspace = after
	if until := s.clock.Add(by); until.After(s.extended) {
		s.extended = until
	}
}

// tick checks that the workspace stops neither early nor without its warning, and not late if all activity is known.
func (s *idleSimulation) tick() {
	t, length, warning := s.t, s.policies.StopAfterIdle, min(s.policies.Warning, s.policies.StopAfterIdle)
	read := s.policies.ActivityReadUntil
	deadline := s.lastActivity(read).Add(length)
	if s.extended.After(deadline) {
		deadline = s.extended
	}
	before := s.w
	s.w = before.Expire(s.policies, s.clock)
	if len(s.w.warnings()) > 0 {
		require.Equal(t, workspace.DesiredRunning, before.DesiredState)
		require.False(t, s.clock.Before(deadline.Add(-warning)), "an early warning")
		s.warnedAt = s.clock
	}
	stopped := before.DesiredState == workspace.DesiredRunning && s.w.DesiredState == workspace.DesiredStopped
	if stopped {
		require.EqualValues(t, events.ExpiryPolicyStopAfterIdle, s.w.cause().Kind)
		require.False(t, s.clock.Before(deadline), "stopped at %s, before %s", s.clock, deadline)
		require.False(t, read.Before(deadline), "activity until the deadline is not known")
		if warning > 0 {
			require.False(t, s.warnedAt.IsZero(), "no warning")
			require.False(t, s.clock.Before(s.warnedAt.Add(warning)), "too soon after the warning")
			require.False(t, s.lastActivity(read).After(s.warnedAt), "activity after the warning")
		}
		s.since, s.warnedAt, s.extended = s.clock, time.Time{}, time.Time{}
		return
	}
	require.Equal(t, before.DesiredState, s.w.DesiredState)
	if s.w.DesiredState != workspace.DesiredRunning || length == 0 || !read.Equal(s.clock) {
		return
	}
	if warning == 0 {
		require.True(t, s.clock.Before(deadline), "the stop at %s is overdue at %s", deadline, s.clock)
		return
	}
	require.True(t, s.clock.Before(deadline.Add(-warning)) || !s.w.WarnedIdleDeadline.Before(deadline), "no warning")
	require.True(t, s.clock.Before(deadline) || s.clock.Before(s.w.WarnedIdleDeadline), "the stop is overdue")
}

// FuzzIdleStop checks that no idle workspace is stopped early, late, twice or without a warning, for any activity,
// extensions and user requests, and however late activity becomes known.
func FuzzIdleStop(f *testing.F) {
	f.Add([]byte{10, 3, 3, 8, 3, 3, 3, 9})
	f.Add([]byte{10, 3, 0, 5, 3, 7, 1, 1, 3, 9, 3, 20, 3, 20})
	f.Add([]byte{10, 3, 2, 40, 3, 7, 3, 50, 4, 1, 0, 1, 3, 1, 5, 1, 3, 30, 3, 30})
	f.Add([]byte{4, 200, 6, 3, 0, 1, 6, 5, 3, 1, 6, 2})
	f.Add([]byte{10, 0, 3, 9, 0, 0, 3, 1, 3, 9})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) < 2 {
			return
		}
		seconds := func(b byte) time.Duration { return time.Duration(b) * time.Second }
		s := &idleSimulation{
			t: t, w: newFixture(t), clock: start(), since: start(),
			policies: workspace.AgePolicies{
				StopAfterIdle: seconds(script[0]), Warning: seconds(script[1]), ActivityReadUntil: start(),
			},
		}
		for step := script[2:]; len(step) >= 2; step = step[2:] {
			s.clock = s.clock.Add(seconds(step[1]))
			switch step[0] % 7 {
			case 0:
				s.activity = append(s.activity, s.clock)
			case 1:
				s.read()
			case 2:
				s.extend(seconds(step[1]) + time.Second)
			case 3:
				s.read()
				s.tick()
			case 4:
				s.setDesired(workspace.DesiredStopped)
			case 5:
				s.setDesired(workspace.DesiredRunning)
			case 6:
				s.tick() // activity is not read
			}
		}
	})
}
