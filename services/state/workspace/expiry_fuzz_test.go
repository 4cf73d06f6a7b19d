package workspace_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
)

// life is a workspace in a made-up history, and what is known of it without asking it.
type life struct {
	t        *testing.T
	w        fixture
	policies workspace.AgePolicies
	clock    time.Time
	// since is when what is wanted changed last, and changes how often it did.
	since   time.Time
	changes int
	// told are the times of warnings, by what they warned of.
	told map[string]time.Time
}

// deadlines are the ends that hold by the policies, without regard to warnings.
func (l *life) deadlines() map[events.ExpiryPolicy]time.Time {
	all := map[events.ExpiryPolicy]time.Time{}
	if l.policies.MaxAge > 0 {
		all[events.ExpiryPolicyMaxAge] = l.w.CreatedAt.Add(l.policies.MaxAge)
	}
	if l.policies.StopAfterRunning > 0 && l.w.DesiredState != workspace.DesiredStopped {
		all[events.ExpiryPolicyStopAfterRunning] = l.since.Add(l.policies.StopAfterRunning)
	}
	if l.policies.TerminateAfterStopped > 0 && l.w.DesiredState == workspace.DesiredStopped {
		all[events.ExpiryPolicyTerminateAfterStopped] = l.since.Add(l.policies.TerminateAfterStopped)
	}
	return all
}

// deadline names an end: that by age is one for life, the others one for each change.
func (l *life) deadline(policy events.ExpiryPolicy) string {
	if policy == events.ExpiryPolicyMaxAge {
		return string(policy)
	}
	return fmt.Sprint(policy, l.changes)
}

// warning is how long before an end of the policy the user has to be warned.
func (l *life) warning(policy events.ExpiryPolicy) time.Duration {
	lasts := map[events.ExpiryPolicy]time.Duration{
		events.ExpiryPolicyStopAfterRunning:      l.policies.StopAfterRunning,
		events.ExpiryPolicyTerminateAfterStopped: l.policies.TerminateAfterStopped,
		events.ExpiryPolicyMaxAge:                l.policies.MaxAge,
	}
	return min(l.policies.Warning, lasts[policy])
}

// wish is a user's, whose clock is behind the agent's.
func (l *life) wish(to workspace.DesiredState, behind time.Duration) {
	now := l.clock.Add(-behind)
	after, err := l.w.SetDesired(to, 9, now)
	require.NoError(l.t, err)
	if after.DesiredState != l.w.DesiredState {
		l.since = now
		l.changes++
	}
	l.w = after
}

// tick looks at the workspace as the agent's tick does.
func (l *life) tick() {
	if l.w.ReconsiderAt.IsZero() || l.w.ReconsiderAt.After(l.clock) {
		return
	}
	l.look()
}

// look observes the workspace.
func (l *life) look() {
	t, before, deadlines := l.t, l.w, l.deadlines()
	after := before.Observe(workspace.Observation{Clock: l.clock, At: l.clock, AgePolicies: l.policies}).
		Expire(l.policies, l.clock)
	if before.DesiredState == workspace.DesiredTerminated {
		require.Equal(t, before.DesiredRevision, after.DesiredRevision, "what is to be terminated is touched")
		require.Empty(t, after.warnings())
		l.w = after
		return
	}
	if after.DesiredState != before.DesiredState {
		policy := events.ExpiryPolicy(after.cause().Kind)
		deadline, holds := deadlines[policy]
		require.True(t, holds, "%s ends what it does not hold for", policy)
		require.False(
			t,
			l.clock.Before(deadline),
			"%s ends the workspace at %s, before its deadline %s",
			policy,
			l.clock,
			deadline,
		)
		if warning := l.warning(policy); warning > 0 {
			told, warned := l.told[l.deadline(policy)]
			require.True(t, warned, "%s ends the workspace without a warning", policy)
			require.False(t, l.clock.Before(told.Add(warning)), "%s ends the workspace too soon after its warning", policy)
		}
		require.Equal(
			t,
			map[bool]workspace.DesiredState{true: workspace.DesiredStopped, false: workspace.DesiredTerminated}[policy == events.ExpiryPolicyStopAfterRunning],
			after.DesiredState,
		)
		l.since = l.clock
		l.changes++
	}
	l.w = after
	for _, warning := range after.warnings() {
		name := l.deadline(warning.Policy)
		require.NotContains(t, l.told, name, "it was warned of already")
		l.told[name] = l.clock
		require.False(
			t,
			warning.ExpiresAt.Before(l.deadlines()[warning.Policy]),
			"the warning names a time before the deadline",
		)
	}
}

// settled is that nothing is left to be done at the present time.
func (l *life) settled() {
	if l.w.DesiredState == workspace.DesiredTerminated {
		return
	}
	for policy, deadline := range l.deadlines() {
		warning := l.warning(policy)
		told, warned := l.told[l.deadline(policy)]
		switch {
		case warning == 0:
			require.True(l.t, l.clock.Before(deadline), "%s is overdue since %s at %s: %+v", policy, deadline, l.clock, l.w)
		case !warned:
			require.True(
				l.t,
				l.clock.Before(deadline.Add(-warning)),
				"the warning of %s at %s is overdue at %s: %+v",
				policy,
				deadline,
				l.clock,
				l.w,
			)
		default:
			require.True(
				l.t,
				l.clock.Before(deadline) || l.clock.Before(told.Add(warning)),
				"%s, told at %s, is overdue at %s",
				policy,
				told,
				l.clock,
			)
		}
	}
}

// FuzzExpire lives made-up lives: whatever users do and however an agent ticks, nothing is ended
// early, unwarned or late, nobody is warned twice of the same end, and no end is missed because nobody
// looks.
func FuzzExpire(f *testing.F) {
	f.Add([]byte{10, 20, 200, 3, 1, 7, 1, 0, 1, 4, 1, 30, 0x12, 1, 1, 50})
	f.Add([]byte{0, 0, 5, 0, 1, 4, 0x20, 1, 1, 1})
	f.Add([]byte{3, 3, 9, 8, 1, 1, 0x31, 2, 1, 1, 0x41, 1, 1, 1, 1, 1, 1, 9})
	f.Add([]byte{5, 0, 0, 2, 0x53, 1, 0x52, 1, 0x51, 1, 1, 200})
	f.Add([]byte{10, 0, 0, 10, 1, 1, 0x34, 0, 1, 1, 1, 5, 1, 9, 1, 10})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) < 4 {
			return
		}
		seconds := func(b byte) time.Duration { return time.Duration(b) * time.Second }
		l := &life{
			t:     t,
			w:     newFixture(t),
			clock: start(),
			since: start(),
			told:  map[string]time.Time{},
			policies: workspace.AgePolicies{
				StopAfterRunning:      seconds(script[0]),
				TerminateAfterStopped: seconds(script[1]),
				MaxAge:                seconds(script[2]),
				Warning:               seconds(script[3]),
			},
		}
		for step := script[4:]; len(step) >= 2; step = step[2:] {
			l.clock = l.clock.Add(seconds(step[1]))
			if l.w.DesiredState == workspace.DesiredTerminated {
				l.look()
				return
			}
			since, behind := l.w.DesiredStateSince, seconds(step[0]&0xf)
			switch step[0] >> 4 {
			case 1:
				l.wish(workspace.DesiredStopped, behind)
			case 2:
				l.wish(workspace.DesiredRunning, behind)
			case 3:
				l.wish(workspace.DesiredRestartRequested, behind)
			case 4:
				l.w = l.w.Redispatch(l.clock)
				require.Equal(t, since, l.w.DesiredStateSince, "telling again is no start")
			case 5:
				l.look() // something else is heard of it
			}
			l.tick()
			l.settled()
		}
	})
}
