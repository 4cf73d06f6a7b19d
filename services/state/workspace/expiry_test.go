package workspace_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

// policies returns policies with different durations.
func policies() workspace.AgePolicies {
	return workspace.AgePolicies{
		StopAfterRunning:      8 * time.Hour,
		TerminateAfterStopped: 100 * time.Hour,
		MaxAge:                1000 * time.Hour,
		Warning:               15 * time.Minute,
	}
}

func at(since time.Duration) time.Time { return start().Add(since) }

// desiredSince sets the desired state and the time of its last change.
func desiredSince(state workspace.DesiredState, since time.Duration) func(*workspace.Workspace) {
	return func(w *workspace.Workspace) { w.DesiredState, w.DesiredStateSince = state, at(since) }
}

func TestNextExpiry(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change   func(*workspace.Workspace)
		policies workspace.AgePolicies
		want     workspace.Expiry
	}{
		"running": {
			desiredSince(workspace.DesiredRunning, time.Hour),
			policies(),
			workspace.Expiry{Policy: events.ExpiryPolicyStopAfterRunning, To: workspace.DesiredStopped, At: at(9 * time.Hour)},
		},
		"restarting": {
			desiredSince(workspace.DesiredRestartRequested, time.Hour),
			policies(),
			workspace.Expiry{Policy: events.ExpiryPolicyStopAfterRunning, To: workspace.DesiredStopped, At: at(9 * time.Hour)},
		},
		"stopped": {
			desiredSince(workspace.DesiredStopped, time.Hour),
			policies(),
			workspace.Expiry{
				Policy: events.ExpiryPolicyTerminateAfterStopped,
				To:     workspace.DesiredTerminated,
				At:     at(101 * time.Hour),
			},
		},
		"old": {
			desiredSince(workspace.DesiredRunning, 999*time.Hour),
			policies(),
			workspace.Expiry{Policy: events.ExpiryPolicyMaxAge, To: workspace.DesiredTerminated, At: at(1000 * time.Hour)},
		},
		"both at once": {
			desiredSince(workspace.DesiredRunning, 992*time.Hour),
			policies(),
			workspace.Expiry{Policy: events.ExpiryPolicyMaxAge, To: workspace.DesiredTerminated, At: at(1000 * time.Hour)},
		},
		"to be terminated": {desiredSince(workspace.DesiredTerminated, 0), policies(), workspace.Expiry{}},
		"no policies": {
			desiredSince(workspace.DesiredRunning, 0),
			workspace.AgePolicies{Warning: time.Hour},
			workspace.Expiry{},
		},
		"others' policies": {
			desiredSince(workspace.DesiredStopped, 0),
			workspace.AgePolicies{StopAfterRunning: time.Hour},
			workspace.Expiry{},
		},
		"warned of a later deadline": {
			func(w *workspace.Workspace) { w.WarnedStateDeadline = at(10 * time.Hour) },
			policies(),
			workspace.Expiry{Policy: events.ExpiryPolicyStopAfterRunning, To: workspace.DesiredStopped, At: at(10 * time.Hour)},
		},
		"warned of an earlier deadline": {
			func(w *workspace.Workspace) { w.WarnedStateDeadline = at(7 * time.Hour) },
			policies(),
			workspace.Expiry{Policy: events.ExpiryPolicyStopAfterRunning, To: workspace.DesiredStopped, At: at(8 * time.Hour)},
		},
		"warned of its age": {
			func(w *workspace.Workspace) { w.WarnedAgeDeadline = at(9999 * time.Hour) },
			workspace.AgePolicies{MaxAge: time.Hour},
			workspace.Expiry{Policy: events.ExpiryPolicyMaxAge, To: workspace.DesiredTerminated, At: at(9999 * time.Hour)},
		},
		"warned of its stop": {
			func(w *workspace.Workspace) { w.WarnedStateDeadline = at(9999 * time.Hour) },
			workspace.AgePolicies{MaxAge: time.Hour},
			workspace.Expiry{Policy: events.ExpiryPolicyMaxAge, To: workspace.DesiredTerminated, At: at(time.Hour)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ends := newFixture(t, test.change).Expiry(test.policies)
			require.Equal(t, test.want, got)
			require.Equal(t, !test.want.At.IsZero(), ends)
		})
	}
}

func TestExpire(t *testing.T) {
	t.Parallel()
	const quarter = 15 * time.Minute
	warned := func(state workspace.DesiredState, of time.Duration) func(*workspace.Workspace) {
		return func(w *workspace.Workspace) { w.DesiredState, w.WarnedStateDeadline = state, at(of) }
	}
	stop := events.ExpiryPolicyStopAfterRunning
	for name, test := range map[string]struct {
		change   func(*workspace.Workspace)
		policies workspace.AgePolicies
		clock    time.Duration
		// noClock: the agent has not sent a tick.
		noClock bool
		// wantState is the new desired state; empty if unchanged.
		wantState workspace.DesiredState
		cause     events.ExpiryPolicy
		// wantWarning is the deadline in the new warning.
		wantWarning      time.Duration
		policy           events.ExpiryPolicy
		wantReconsiderAt time.Duration
	}{
		"long before":  {policies: policies(), clock: time.Hour, wantReconsiderAt: 8*time.Hour - quarter},
		"no clock yet": {policies: policies(), noClock: true, wantReconsiderAt: 8*time.Hour - quarter},
		"just before the warning": {
			policies:         policies(),
			clock:            8*time.Hour - quarter - 1,
			wantReconsiderAt: 8*time.Hour - quarter,
		},
		"the warning": {
			policies:         policies(),
			clock:            8*time.Hour - quarter,
			wantWarning:      8 * time.Hour,
			policy:           stop,
			wantReconsiderAt: 8 * time.Hour,
		},
		"a warning between two ticks": {
			policies:         policies(),
			clock:            8*time.Hour - quarter + 10*time.Second,
			wantWarning:      8*time.Hour + 10*time.Second,
			policy:           stop,
			wantReconsiderAt: 8*time.Hour + 10*time.Second,
		},
		"warned already": {
			change:           warned(workspace.DesiredRunning, 8*time.Hour),
			policies:         policies(),
			clock:            8*time.Hour - 1,
			wantReconsiderAt: 8 * time.Hour,
		},
		"the end": {
			change:           warned(workspace.DesiredRunning, 8*time.Hour),
			policies:         policies(),
			clock:            8 * time.Hour,
			wantState:        workspace.DesiredStopped,
			cause:            stop,
			wantReconsiderAt: 108*time.Hour - quarter,
		},
		"the end of a restart": {
			change:           warned(workspace.DesiredRestartRequested, 8*time.Hour),
			policies:         policies(),
			clock:            9 * time.Hour,
			wantState:        workspace.DesiredStopped,
			cause:            stop,
			wantReconsiderAt: 109*time.Hour - quarter,
		},
		"the deadline in the last warning": {
			change:           warned(workspace.DesiredRunning, 9*time.Hour),
			policies:         policies(),
			clock:            8 * time.Hour,
			wantReconsiderAt: 9 * time.Hour,
		},
		"the warning is late": {
			policies:         policies(),
			clock:            20 * time.Hour,
			wantWarning:      20*time.Hour + quarter,
			policy:           stop,
			wantReconsiderAt: 20*time.Hour + quarter,
		},
		"a policy that was due for years": {
			policies:         workspace.AgePolicies{MaxAge: time.Hour, Warning: quarter},
			clock:            20000 * time.Hour,
			wantWarning:      20000*time.Hour + quarter,
			policy:           events.ExpiryPolicyMaxAge,
			wantReconsiderAt: 20000*time.Hour + quarter,
		},
		"no warning configured": {
			policies:  workspace.AgePolicies{StopAfterRunning: time.Hour},
			clock:     time.Hour,
			wantState: workspace.DesiredStopped,
			cause:     stop,
		},
		"no warning configured, before the deadline": {
			policies:         workspace.AgePolicies{StopAfterRunning: time.Hour},
			clock:            time.Hour - 1,
			wantReconsiderAt: time.Hour,
		},
		"a policy shorter than the warning": {
			policies:         workspace.AgePolicies{StopAfterRunning: time.Minute, Warning: quarter},
			clock:            time.Second,
			wantWarning:      time.Minute + time.Second,
			policy:           stop,
			wantReconsiderAt: time.Minute + time.Second,
		},
		"stopped for long": {
			change:    warned(workspace.DesiredStopped, 100*time.Hour),
			policies:  policies(),
			clock:     100 * time.Hour,
			wantState: workspace.DesiredTerminated,
			cause:     events.ExpiryPolicyTerminateAfterStopped,
		},
		"old": {
			change: func(w *workspace.Workspace) {
				w.DesiredStateSince, w.WarnedAgeDeadline = at(999*time.Hour), at(1000*time.Hour)
			}, policies: policies(), clock: 1000 * time.Hour,
			wantState: workspace.DesiredTerminated, cause: events.ExpiryPolicyMaxAge,
		},
		"old and running for long": {
			change: func(w *workspace.Workspace) {
				w.WarnedStateDeadline, w.WarnedAgeDeadline = at(8*time.Hour), at(1000*time.Hour)
			},
			policies: policies(), clock: 1000 * time.Hour, wantState: workspace.DesiredTerminated,
			cause: events.ExpiryPolicyMaxAge,
		},
		"a warning of max_age after one of a stop": {
			change: func(w *workspace.Workspace) {
				w.DesiredStateSince, w.WarnedStateDeadline = at(992*time.Hour), at(1000*time.Hour)
			},
			policies: policies(), clock: 1000*time.Hour - quarter, wantWarning: 1000 * time.Hour,
			policy: events.ExpiryPolicyMaxAge, wantReconsiderAt: 1000 * time.Hour,
		},
		"the deadline of the actual state is earlier": {
			change: func(w *workspace.Workspace) { w.RecomputeAt = at(2 * time.Hour) }, policies: policies(),
			clock: time.Hour, wantReconsiderAt: 2 * time.Hour,
		},
		"no policies": {clock: 1e6 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := newFixture(t, func(w *workspace.Workspace) { w.RecomputeAt = time.Time{} })
			if test.change != nil {
				test.change(&before.Workspace)
			}
			clock := at(test.clock)
			if test.noClock {
				clock = time.Time{}
			}
			after := before.Expire(test.policies, clock)
			changes := after.events
			if test.wantState != "" {
				require.Equal(t, test.wantState, after.DesiredState)
				require.Equal(t, before.DesiredRevision+1, after.DesiredRevision)
				require.Equal(t, clock, after.DesiredStateSince)
				require.NotEmpty(t, changes)
				changed := changes[0].Data.(events.WorkspaceDesiredStateChanged)
				require.Equal(t, events.DesiredStateCause(test.cause), *changed.Cause)
				require.NotEmpty(t, changed.Message)
				require.Zero(t, changed.UserID)
				changes = changes[1:]
			} else {
				require.Equal(t, before.DesiredState, after.DesiredState)
				require.Equal(t, before.DesiredRevision, after.DesiredRevision)
			}
			if test.policy != "" {
				require.Len(t, changes, 1)
				warning := changes[0].Data.(events.WorkspaceExpiryWarning)
				require.Equal(t, "expiry_warning", changes[0].Name)
				require.Equal(t, clock, changes[0].Time)
				require.Equal(t, test.policy, warning.Policy)
				require.Equal(t, at(test.wantWarning), warning.ExpiresAt)
				require.Contains(t, warning.Message, at(test.wantWarning).Format(time.RFC3339))
				changes = nil
			}
			require.Empty(t, changes)
			switch {
			case after.DesiredState == workspace.DesiredTerminated && before.DesiredState != workspace.DesiredTerminated:
				require.Equal(t, workspace.DueAtNextTick(), after.RecomputeAt, "the actual state depends on the desired state")
			case test.wantReconsiderAt == 0:
				require.Zero(t, after.RecomputeAt)
			default:
				require.Equal(t, at(test.wantReconsiderAt), after.RecomputeAt)
			}
		})
	}
}

func TestMessagesOfPolicies(t *testing.T) {
	t.Parallel()
	w := newFixture(t).Expire(policies(), at(8*time.Hour-15*time.Minute))
	require.Equal(
		t,
		"workspace ide will be stopped at 2026-03-04T13:06:07Z: its agent lets workspaces run for 8h; restart it to run it longer",
		w.warnings()[0].Message,
	)
	w = w.Expire(policies(), at(8*time.Hour))
	require.Equal(
		t,
		"workspace ide is stopped: it ran for 8h, the limit of its agent; start it to continue",
		w.cause().Message,
	)
	w = w.Expire(policies(), at(108*time.Hour-15*time.Minute))
	require.Equal(
		t,
		"workspace ide and its volume will be deleted at 2026-03-08T17:06:07Z: its agent keeps stopped workspaces for 100h; start it to keep it",
		w.warnings()[0].Message,
	)
	w = w.Expire(policies(), at(108*time.Hour))
	require.Equal(t, "workspace ide is terminated: it was stopped for 100h, the limit of its agent", w.cause().Message)
	old := workspace.AgePolicies{MaxAge: 90 * time.Minute, Warning: 30 * time.Second}
	w = newFixture(t).Expire(old, at(90*time.Minute-30*time.Second))
	require.Equal(
		t,
		"workspace ide and its volume will be deleted at 2026-03-04T06:36:07Z: its agent keeps workspaces for 1h30m; save what you need elsewhere",
		w.warnings()[0].Message,
	)
	w = w.Expire(old, at(90*time.Minute))
	require.Equal(t, "workspace ide is terminated: it is 1h30m old, the limit of its agent", w.cause().Message)
}

func TestRestartResetsTheExpiry(t *testing.T) {
	t.Parallel()
	near := at(8*time.Hour - time.Minute)
	w := newFixture(
		t,
		func(w *workspace.Workspace) { w.RecomputeAt = time.Time{} },
	).Expire(policies(), at(8*time.Hour-15*time.Minute))
	require.Len(t, w.warnings(), 1)
	same := w.Redispatch(near).Expire(policies(), near)
	require.Equal(t, at(8*time.Hour), same.RecomputeAt, "a redispatch does not restart the policy")

	restarted, err := w.SetDesired(workspace.DesiredRestartRequested, 9, near)
	require.NoError(t, err)
	require.Equal(t, workspace.DueAtNextTick(), restarted.RecomputeAt, "the next tick computes the deadlines")
	restarted = restarted.Observe(workspace.Observation{Clock: at(8 * time.Hour), AgePolicies: policies()}).
		Expire(policies(), at(8*time.Hour))
	require.Equal(t, workspace.DesiredRestartRequested, restarted.DesiredState)
	require.Empty(t, restarted.warnings())
	require.Equal(t, near.Add(8*time.Hour-15*time.Minute), restarted.RecomputeAt)
	again := restarted.Expire(policies(), near.Add(8*time.Hour-15*time.Minute))
	require.Len(t, again.warnings(), 1, "a warning of the new deadline")
}

func TestWarningWithoutADeadlineIsCleared(t *testing.T) {
	t.Parallel()
	old := workspace.AgePolicies{MaxAge: time.Hour, Warning: 15 * time.Minute}
	w := newFixture(t).Expire(old, at(50*time.Minute))
	require.Len(t, w.warnings(), 1)
	w = w.Expire(workspace.AgePolicies{}, at(55*time.Minute))
	require.Zero(t, w.WarnedAgeDeadline)
	require.Empty(t, w.warnings())
	w = w.Expire(old, at(100*time.Hour))
	require.Equal(t, workspace.DesiredRunning, w.DesiredState, "the earlier warning was cleared")
	require.Len(t, w.warnings(), 1)
	require.Equal(t, workspace.DesiredTerminated, w.Expire(old, at(100*time.Hour+15*time.Minute)).DesiredState)
}

func TestPoliciesIgnoreTerminatedWorkspaces(t *testing.T) {
	t.Parallel()
	for _, change := range []func(w *workspace.Workspace){
		desiredSince(workspace.DesiredTerminated, 0), func(w *workspace.Workspace) { w.ActualState = actualstate.Terminated },
	} {
		w := newFixture(t, change)
		require.Equal(t, w.Workspace, w.Expire(policies(), at(1e6*time.Hour)).Workspace)
	}
}
