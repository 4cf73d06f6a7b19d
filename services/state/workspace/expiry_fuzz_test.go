package workspace_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/workspace"
)

// expirySimulation is a workspace with an independent model of its deadlines.
type expirySimulation struct {
	t        *testing.T
	w        fixture
	policies workspace.AgePolicies
	// clock is the clock of the stream. The agent's clock is ahead by offset, which may be negative.
	clock   time.Time
	offset  time.Duration
	cluster agent.Cluster
	// since is the last change of the desired state. changes counts them.
	since   time.Time
	changes int
	// warnedAt has the time of each warning, by deadline.
	warnedAt map[string]time.Time
}

// deadlines returns the deadline of each policy, without warnings.
func (l *expirySimulation) deadlines() map[events.ExpiryPolicy]time.Time {
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

// deadlineName returns a unique name. max_age has one deadline; other policies have one per change.
func (l *expirySimulation) deadlineName(policy events.ExpiryPolicy) string {
	if policy == events.ExpiryPolicyMaxAge {
		return string(policy)
	}
	return fmt.Sprint(policy, l.changes)
}

// warning returns the time between the warning and the expiry.
func (l *expirySimulation) warning(policy events.ExpiryPolicy) time.Duration {
	lasts := map[events.ExpiryPolicy]time.Duration{
		events.ExpiryPolicyStopAfterRunning:      l.policies.StopAfterRunning,
		events.ExpiryPolicyTerminateAfterStopped: l.policies.TerminateAfterStopped,
		events.ExpiryPolicyMaxAge:                l.policies.MaxAge,
	}
	return min(l.policies.Warning, lasts[policy])
}

// setDesired simulates a user request. The server clock is behind the agent clock.
func (l *expirySimulation) setDesired(to workspace.DesiredState, behind time.Duration) {
	now := l.clock.Add(-behind)
	after, err := l.w.SetDesired(to, 9, now)
	require.NoError(l.t, err)
	if after.DesiredState != l.w.DesiredState {
		l.since = now
		l.changes++
	}
	l.w = after
}

// tick recomputes the workspace if it is due.
func (l *expirySimulation) tick() {
	l.cluster, _ = l.cluster.Tick(l.clock.Add(l.offset), l.clock)
	if l.w.RecomputeAt.IsZero() || l.w.RecomputeAt.After(l.clock) && l.w.RecomputeAt.After(l.cluster.TickedAt) {
		return
	}
	l.observe(l.clock)
}

// observation returns an observation at the agent's time.
func (l *expirySimulation) observation() workspace.Observation {
	return workspace.Observation{
		Clock: l.cluster.TickedAt, AgePolicies: l.policies, At: event.AgentTime(l.clock.Add(l.offset), l.clock),
	}
}

// completeRestart observes the stop that a requested restart waits for.
func (l *expirySimulation) completeRestart() {
	if l.w.DesiredState != workspace.DesiredRestartRequested {
		return
	}
	o := l.observation()
	l.w.AppliedRevision = l.w.DesiredRevision
	o.Seen, o.Deployment = true, deployment(0, strconv.FormatInt(l.w.DesiredRevision, 10))
	l.w = l.w.Observe(o)
	require.Equal(l.t, workspace.DesiredRunning, l.w.DesiredState)
	if o.At.After(l.since) {
		l.since = o.At
	}
	l.changes++
	l.w = l.w.Expire(l.policies, time.Time{})
}

// observe recomputes the workspace and checks the result. ticked is zero for an event that is no tick.
func (l *expirySimulation) observe(ticked time.Time) {
	t, before, deadlines := l.t, l.w, l.deadlines()
	after := before.Observe(l.observation()).Expire(l.policies, ticked)
	if before.DesiredState == workspace.DesiredTerminated {
		require.Equal(t, before.DesiredRevision, after.DesiredRevision, "a terminated workspace must not change")
		require.Empty(t, after.warnings())
		l.w = after
		return
	}
	if after.DesiredState != before.DesiredState {
		policy := events.ExpiryPolicy(after.cause().Kind)
		deadline, holds := deadlines[policy]
		require.True(t, holds, "%s expired a workspace without this policy", policy)
		require.False(
			t,
			l.clock.Before(deadline),
			"%s ends the workspace at %s, before its deadline %s",
			policy,
			l.clock,
			deadline,
		)
		if warning := l.warning(policy); warning > 0 {
			warnedAt, warned := l.warnedAt[l.deadlineName(policy)]
			require.True(t, warned, "%s ends the workspace without a warning", policy)
			require.False(t, l.clock.Before(warnedAt.Add(warning)), "%s ends the workspace too soon after its warning", policy)
		}
		require.Equal(
			t,
			map[bool]workspace.DesiredState{
				true:  workspace.DesiredStopped,
				false: workspace.DesiredTerminated,
			}[policy == events.ExpiryPolicyStopAfterRunning],
			after.DesiredState,
		)
		l.since = l.clock
		l.changes++
	}
	l.w = after
	for _, warning := range after.warnings() {
		name := l.deadlineName(warning.Policy)
		require.NotContains(t, l.warnedAt, name, "a second warning of one deadline")
		l.warnedAt[name] = l.clock
		require.False(
			t,
			warning.ExpiresAt.Before(l.deadlines()[warning.Policy]),
			"the warning names a time before the deadline",
		)
	}
}

// requireNothingOverdue checks that no warning or expiry is overdue.
func (l *expirySimulation) requireNothingOverdue() {
	if l.w.DesiredState == workspace.DesiredTerminated {
		return
	}
	for policy, deadline := range l.deadlines() {
		warning := l.warning(policy)
		warnedAt, warned := l.warnedAt[l.deadlineName(policy)]
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
				l.clock.Before(deadline) || l.clock.Before(warnedAt.Add(warning)),
				"%s, warned at %s, is overdue at %s",
				policy,
				warnedAt,
				l.clock,
			)
		}
	}
}

// FuzzExpire checks that no workspace expires early, late or without a warning and its full notice, all by the clock of
// the stream, and that no deadline gets two warnings: for any user requests, restarts, ticks, outages of the agent and
// jumps of its clock.
func FuzzExpire(f *testing.F) {
	f.Add([]byte{10, 20, 200, 3, 1, 7, 1, 0, 1, 4, 1, 30, 0x12, 1, 1, 50})
	f.Add([]byte{0, 0, 5, 0, 1, 4, 0x20, 1, 1, 1})
	f.Add([]byte{3, 3, 9, 8, 1, 1, 0x31, 2, 1, 1, 0x41, 1, 1, 1, 1, 1, 1, 9})
	f.Add([]byte{5, 0, 0, 2, 0x53, 1, 0x52, 1, 0x51, 1, 1, 200})
	f.Add([]byte{10, 0, 0, 10, 1, 1, 0x34, 0, 1, 1, 1, 5, 1, 9, 1, 10})
	f.Add([]byte{0, 0, 200, 20, 0x6f, 1, 0, 9, 0x60, 1, 0, 180, 0x6f, 9, 0, 12})           // forwards and backwards
	f.Add([]byte{0, 50, 200, 20, 0x10, 1, 0x60, 1, 0x70, 250, 0, 1, 0x6f, 1, 0, 19, 1, 9}) // an outage and a jump
	f.Add([]byte{30, 9, 0, 9, 0x60, 1, 0x31, 1, 0x80, 1, 0, 21, 0x6f, 1, 0, 9, 0, 9})      // a restart by a slow clock
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) < 4 {
			return
		}
		seconds := func(b byte) time.Duration { return time.Duration(b) * time.Second }
		l := &expirySimulation{
			t:        t,
			w:        newFixture(t),
			clock:    start(),
			since:    start(),
			warnedAt: map[string]time.Time{},
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
				l.observe(l.clock)
				return
			}
			since, behind := l.w.DesiredStateSince, seconds(step[0]&0xf)
			switch step[0] >> 4 {
			case 1:
				l.setDesired(workspace.DesiredStopped, behind)
			case 2:
				l.setDesired(workspace.DesiredRunning, behind)
			case 3:
				l.setDesired(workspace.DesiredRestartRequested, behind)
			case 4:
				l.w = l.w.Redispatch(l.clock)
				require.Equal(t, since, l.w.DesiredStateSince, "a redispatch does not restart the policy")
			case 5:
				l.observe(time.Time{}) // another event of the workspace
			case 6:
				// The agent's clock jumps: 0 is 8 years behind, 15 is 7 years ahead.
				l.offset = time.Duration(int(step[0]&0xf)-8) * 365 * 24 * time.Hour
			case 7:
				continue // no tick arrives
			case 8:
				l.completeRestart()
			}
			l.tick()
			l.requireNothingOverdue()
		}
	})
}
