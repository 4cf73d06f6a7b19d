package workspace

import (
	"fmt"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// MinStopAfterIdle is the shortest time after which an idle workspace is stopped. Gateways report activity once a
	// minute.
	MinStopAfterIdle = 2 * time.Minute
	// MaxExtension is the longest time for which people keep an idle workspace alive at once.
	MaxExtension = 24 * time.Hour
)

// Activity is what was seen last in a workspace. The zero value is none.
type Activity struct {
	// At is the time of the last input, at most the time at which the stream stored its event.
	At time.Time
	// UserID of the person who was active; 0 for programs.
	UserID int64
	// Program is the name of the program that worked, if nobody was active.
	Program string
}

// StopAfterIdle returns after which time without activity a policy stops the workspace: the shorter one of its agent's
// and its own. 0 means never.
func (w Workspace) StopAfterIdle(p AgePolicies) time.Duration {
	own := w.Spec.StopAfterIdle
	if own > 0 && (p.StopAfterIdle <= 0 || own < p.StopAfterIdle) {
		return own
	}
	return max(p.StopAfterIdle, 0)
}

// countsProcesses reports whether programs that people have started keep the workspace alive while they work.
func (w Workspace) countsProcesses(p AgePolicies) bool {
	running := w.DesiredState == DesiredRunning || w.DesiredState == DesiredRestartRequested
	return running && w.StopAfterIdle(p) > 0 && (w.Spec.IdleCountsProcesses || p.IdleCountsProcesses)
}

// IdleSince returns the last activity, or the start of the workspace if that is later.
func (w Workspace) IdleSince() time.Time { return latest(w.DesiredStateSince, w.LastActivity.At) }

// IdleStopsAt returns when the workspace is stopped if it stays idle. It returns false if it is not stopped.
func (w Workspace) IdleStopsAt(p AgePolicies) (time.Time, bool) {
	for _, d := range w.deadlines(p) {
		if d.basis == idle {
			return d.At, true
		}
	}
	return time.Time{}, false
}

// KeptAliveBecause returns why a workspace that should run is not stopped yet, as a sentence for people. It is empty
// for other workspaces.
func (w Workspace) KeptAliveBecause(p AgePolicies) string {
	if w.DesiredState != DesiredRunning && w.DesiredState != DesiredRestartRequested {
		return ""
	}
	length := w.StopAfterIdle(p)
	format := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch {
	case length == 0:
		return "no policy stops it when it is idle"
	case w.ExtendedUntil.After(w.IdleSince().Add(length)):
		return "it was extended until " + format(w.ExtendedUntil)
	case !w.LastActivity.At.After(w.DesiredStateSince):
		return "it was started at " + format(w.DesiredStateSince)
	case w.LastActivity.UserID == 0:
		return fmt.Sprintf("the program %s was working at %s", w.LastActivity.Program, format(w.LastActivity.At))
	case w.LastActivity.UserID == w.UserID:
		return "its owner was active at " + format(w.LastActivity.At)
	default:
		return fmt.Sprintf("user %d was active at %s", w.LastActivity.UserID, format(w.LastActivity.At))
	}
}

// Active returns the workspace after activity, and whether that is news. Activity never changes the desired state: it
// does not start a stopped workspace.
func (w Workspace) Active(a Activity) (Workspace, bool) {
	if !a.At.After(w.LastActivity.At) {
		return w, false
	}
	w.LastActivity = a
	return w, true
}

// Extend keeps a workspace alive, even if it is idle, for a time from now. An extension never becomes shorter. Limits
// of the agent other than stop_after_idle still apply.
func (w Workspace) Extend(by time.Duration, now time.Time) (Workspace, error) {
	switch {
	case by <= 0 || by > MaxExtension:
		return w, fault.New(errcode.InvalidArgument, "duration: %s is not more than 0 and at most %s",
			by, shortDuration(MaxExtension)).With("field", "duration")
	case w.DesiredState != DesiredRunning && w.DesiredState != DesiredRestartRequested:
		return w, fault.New(errcode.FailedPrecondition, "workspace %q is not running: start it (lockstep ws start)", w.Name)
	}
	w.ExtendedUntil = latest(w.ExtendedUntil, Timestamp(now.Add(by)))
	w.RecomputeAt = DueAtNextTick() // the next tick computes the deadlines of the policies
	return w, nil
}
