package workspace_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/workspace"
)

// idlePolicies stop a workspace that is idle for 2 h. All activity until a time after start is known.
func idlePolicies(readUntil time.Duration) workspace.AgePolicies {
	return workspace.AgePolicies{
		StopAfterIdle: 2 * time.Hour, Warning: 15 * time.Minute, ActivityReadUntil: at(readUntil),
	}
}

func active(since time.Duration, user int64) func(*workspace.Workspace) {
	return func(w *workspace.Workspace) { w.LastActivity = workspace.Activity{At: at(since), UserID: user} }
}

func TestIdleStop(t *testing.T) {
	t.Parallel()
	const quarter = 15 * time.Minute
	warned := func(of time.Duration) func(*workspace.Workspace) {
		return func(w *workspace.Workspace) { w.WarnedIdleDeadline = at(of) }
	}
	extended := func(until time.Duration) func(*workspace.Workspace) {
		return func(w *workspace.Workspace) { w.ExtendedUntil = at(until) }
	}
	for name, test := range map[string]struct {
		changes     []func(*workspace.Workspace)
		read, clock time.Duration
		stops       bool
		// warns is the deadline in the new warning.
		warns time.Duration
	}{
		"just started":          {read: time.Hour, clock: time.Hour},
		"the warning":           {read: 2*time.Hour - quarter, clock: 2*time.Hour - quarter, warns: 2 * time.Hour},
		"the warning is late":   {read: 9 * time.Hour, clock: 9 * time.Hour, warns: 9*time.Hour + quarter},
		"no activity is known":  {read: -time.Hour, clock: 9 * time.Hour},
		"activity is not known": {read: 2*time.Hour - quarter - 1, clock: 9 * time.Hour},
		"the stop": {
			changes: []func(*workspace.Workspace){warned(2 * time.Hour)}, read: 2 * time.Hour, clock: 2 * time.Hour, stops: true,
		},
		"before the stop": {
			changes: []func(*workspace.Workspace){warned(2 * time.Hour)}, read: 2 * time.Hour, clock: 2*time.Hour - 1,
		},
		"the stop waits for what is read": {
			changes: []func(*workspace.Workspace){warned(2 * time.Hour)}, read: 2*time.Hour - 1, clock: 3 * time.Hour,
		},
		"activity after the warning": {
			changes: []func(*workspace.Workspace){warned(2 * time.Hour), active(2*time.Hour-1, 9)},
			read:    2 * time.Hour, clock: 2 * time.Hour,
		},
		"activity long ago": {
			changes: []func(*workspace.Workspace){active(time.Hour, 9)},
			read:    3*time.Hour - quarter, clock: 3*time.Hour - quarter, warns: 3 * time.Hour,
		},
		"activity before the start": {
			changes: []func(*workspace.Workspace){active(-9*time.Hour, 9), warned(2 * time.Hour)},
			read:    2 * time.Hour, clock: 2 * time.Hour, stops: true,
		},
		"extended": {
			changes: []func(*workspace.Workspace){extended(9 * time.Hour)}, read: 8 * time.Hour, clock: 8 * time.Hour,
		},
		"extended after the warning": {
			changes: []func(*workspace.Workspace){extended(9 * time.Hour), warned(2 * time.Hour)},
			read:    8 * time.Hour, clock: 8 * time.Hour,
		},
		"the warning of the end of an extension": {
			changes: []func(*workspace.Workspace){extended(9 * time.Hour)},
			read:    9*time.Hour - quarter, clock: 9*time.Hour - quarter, warns: 9 * time.Hour,
		},
		"an extension that ended before the deadline": {
			changes: []func(*workspace.Workspace){extended(time.Hour), warned(2 * time.Hour)},
			read:    2 * time.Hour, clock: 2 * time.Hour, stops: true,
		},
		"stopped": {
			changes: []func(*workspace.Workspace){desiredSince(workspace.DesiredStopped, 0)},
			read:    9 * time.Hour, clock: 9 * time.Hour,
		},
		"its own time is shorter": {
			changes: []func(*workspace.Workspace){func(w *workspace.Workspace) { w.Spec.StopAfterIdle = time.Hour }},
			read:    time.Hour - quarter, clock: time.Hour - quarter, warns: time.Hour,
		},
		"its own time is longer": {
			changes: []func(*workspace.Workspace){func(w *workspace.Workspace) { w.Spec.StopAfterIdle = 9 * time.Hour }},
			read:    2*time.Hour - quarter, clock: 2*time.Hour - quarter, warns: 2 * time.Hour,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := newFixture(t, test.changes...)
			after := before.Expire(idlePolicies(test.read), at(test.clock))
			if test.stops {
				require.Equal(t, workspace.DesiredStopped, after.DesiredState)
				require.EqualValues(t, events.ExpiryPolicyStopAfterIdle, after.cause().Kind)
				require.Zero(t, after.ExtendedUntil)
			} else {
				require.Equal(t, before.DesiredState, after.DesiredState)
			}
			if test.warns == 0 {
				require.Empty(t, after.warnings())
				return
			}
			require.Len(t, after.warnings(), 1)
			require.Equal(t, events.ExpiryPolicyStopAfterIdle, after.warnings()[0].Policy)
			require.Equal(t, at(test.warns), after.warnings()[0].ExpiresAt)
			require.Empty(t, after.Expire(idlePolicies(test.read), at(test.clock)).warnings(), "once")
		})
	}
}

func TestMessagesOfIdleStop(t *testing.T) {
	t.Parallel()
	w := newFixture(t, active(time.Hour, 9)).Expire(idlePolicies(3*time.Hour), at(2*time.Hour+45*time.Minute))
	require.Equal(t, "workspace ide will be stopped at 2026-03-04T08:06:07Z: nobody has been active in it since "+
		"2026-03-04T06:06:07Z; use it, or keep it running (lockstep ws extend)", w.warnings()[0].Message)
	w = w.Expire(idlePolicies(3*time.Hour), at(3*time.Hour))
	require.Equal(t, "workspace ide is stopped: nobody has been active in it since 2026-03-04T06:06:07Z; "+
		"start it to continue", w.cause().Message)
}

// TestActivityStartsNoWorkspace is about clients that reconnect by themselves.
func TestActivityStartsNoWorkspace(t *testing.T) {
	t.Parallel()
	w := newFixture(t, desiredSince(workspace.DesiredStopped, time.Hour))
	after, news := w.Active(workspace.Activity{At: at(2 * time.Hour), UserID: 9})
	require.True(t, news)
	require.Equal(t, workspace.DesiredStopped, after.DesiredState)
	require.Equal(t, w.DesiredRevision, after.DesiredRevision)
	after, news = after.Active(workspace.Activity{At: at(time.Hour), UserID: 10})
	require.False(t, news, "older than what is known")
	require.Equal(t, workspace.Activity{At: at(2 * time.Hour), UserID: 9}, after.LastActivity)
	require.Empty(t, after.KeptAliveBecause(idlePolicies(0)))
}

func TestWorkspaceIsKeptAliveBecause(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	require.Equal(t, "no policy stops it when it is idle", w.KeptAliveBecause(workspace.AgePolicies{}))
	_, stops := w.IdleStopsAt(workspace.AgePolicies{MaxAge: time.Hour})
	require.False(t, stops)
	require.Equal(t, "it was started at 2026-03-04T05:06:07Z", w.KeptAliveBecause(idlePolicies(0)))
	active(time.Hour, 9)(&w.Workspace)
	require.Equal(t, "its owner was active at 2026-03-04T06:06:07Z", w.KeptAliveBecause(idlePolicies(0)))
	active(time.Hour, 10)(&w.Workspace)
	require.Equal(t, "user 10 was active at 2026-03-04T06:06:07Z", w.KeptAliveBecause(idlePolicies(0)))
	w.LastActivity = workspace.Activity{At: at(time.Hour), Program: "make"}
	require.Equal(t, "the program make was working at 2026-03-04T06:06:07Z", w.KeptAliveBecause(idlePolicies(0)))
	stopsAt, _ := w.IdleStopsAt(idlePolicies(0))
	require.Equal(t, at(3*time.Hour), stopsAt)
	w.ExtendedUntil = at(4 * time.Hour)
	require.Equal(t, "it was extended until 2026-03-04T09:06:07Z", w.KeptAliveBecause(idlePolicies(0)))
	stopsAt, _ = w.IdleStopsAt(idlePolicies(0))
	require.Equal(t, at(4*time.Hour), stopsAt)
}

func TestProcessesCountByThePolicyOfTheWorkspaceOrOfItsAgent(t *testing.T) {
	t.Parallel()
	counting := idlePolicies(0)
	counting.IdleCountsProcesses = true
	own := func(w *workspace.Workspace) { w.Spec.IdleCountsProcesses = true }
	for name, test := range map[string]struct {
		policies workspace.AgePolicies
		changes  []func(*workspace.Workspace)
		want     bool
	}{
		"neither":                   {policies: idlePolicies(0)},
		"the agent's":               {policies: counting, want: true},
		"its own":                   {policies: idlePolicies(0), changes: []func(*workspace.Workspace){own}, want: true},
		"nothing stops it":          {policies: workspace.AgePolicies{IdleCountsProcesses: true}},
		"nothing stops it, its own": {changes: []func(*workspace.Workspace){own}},
		"its own time": {
			changes: []func(*workspace.Workspace){own, func(w *workspace.Workspace) { w.Spec.StopAfterIdle = time.Hour }},
			want:    true,
		},
		"it should be stopped": {
			policies: counting, changes: []func(*workspace.Workspace){desiredSince(workspace.DesiredStopped, 0)},
		},
		"no longer": {
			policies: idlePolicies(0), changes: []func(*workspace.Workspace){
				func(w *workspace.Workspace) { w.CountsProcesses = true },
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, newFixture(t, test.changes...).Expire(test.policies, time.Time{}).CountsProcesses)
		})
	}
}

func TestExtend(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	extended, err := w.Extend(4*time.Hour, at(time.Hour))
	require.NoError(t, err)
	require.Equal(t, at(5*time.Hour), extended.ExtendedUntil)
	require.Equal(t, workspace.DueAtNextTick(), extended.RecomputeAt)
	extended, err = extended.Extend(time.Hour, at(time.Hour))
	require.NoError(t, err)
	require.Equal(t, at(5*time.Hour), extended.ExtendedUntil, "an extension never becomes shorter")
	stopped, _, err := extended.SetDesired(workspace.DesiredStopped, 9, at(2*time.Hour))
	require.NoError(t, err)
	require.Zero(t, stopped.ExtendedUntil)
	_, err = stopped.Extend(time.Hour, at(2*time.Hour))
	require.True(t, fault.Is(err, errcode.FailedPrecondition), "%v", err)
	for _, wrong := range []time.Duration{0, -time.Hour, workspace.MaxExtension + 1} {
		_, err := w.Extend(wrong, start())
		require.True(t, fault.Is(err, errcode.InvalidArgument), "%v", err)
	}
}
