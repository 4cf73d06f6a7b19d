package workspace

import (
	"fmt"
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// AgePolicies stop and terminate workspaces after a time, measured by the clock of the
// stream: no agent can move it. 0 means never.
type AgePolicies struct {
	// StopAfterRunning limits how long the desired state stays running.
	StopAfterRunning time.Duration
	// TerminateAfterStopped limits how long the desired state stays stopped.
	TerminateAfterStopped time.Duration
	// MaxAge limits the age of a workspace.
	MaxAge time.Duration
	// StopAfterIdle limits how long a workspace runs without activity.
	StopAfterIdle time.Duration
	// IdleCountsProcesses makes work of programs that people have started activity.
	IdleCountsProcesses bool
	// ActivityReadUntil is the time until which all activity is known, by the clock of the stream. An idle workspace is
	// neither warned nor stopped by a deadline after it.
	ActivityReadUntil time.Time
	// Warning is the time between the warning and the expiry, at most the length of the policy. A late warning delays
	// the expiry. 0 means no warning.
	Warning time.Duration
}

// Expiry is the time at which a policy changes the desired state.
type Expiry struct {
	Policy events.ExpiryPolicy
	// To is the new desired state.
	To DesiredState
	// At is the deadline by the clock of the stream.
	At time.Time
}

// Expiry returns the earliest deadline of all policies. It returns false if no policy applies.
func (w Workspace) Expiry(p AgePolicies) (Expiry, bool) {
	var next Expiry
	for _, d := range w.deadlines(p) {
		if next.At.IsZero() || d.before(next) {
			next = d.Expiry
		}
	}
	return next, !next.At.IsZero()
}

// before orders expiries by time. At the same time, termination comes first.
func (e Expiry) before(other Expiry) bool {
	return e.At.Before(other.At) || e.At.Equal(other.At) && e.To == DesiredTerminated
}

// Expire enforces the age policies after Observe: it changes the desired state at the deadline, warns
// before it, and sets RecomputeAt and CountsProcesses. ticked is when the stream stored the tick that led to this
// decision; zero for other events, which only set those two.
func (w Workspace) Expire(p AgePolicies, ticked time.Time) (Workspace, []Event) {
	if w.DesiredState == DesiredTerminated || w.ActualState == actualstate.Terminated {
		return w, nil
	}
	var changes []Event
	if d, due := w.due(p, ticked); due {
		var event Event
		w, event = w.newRevision(d.To, Cause{Kind: events.DesiredStateCause(d.Policy), Message: d.endMessage(w.Name)}, ticked)
		changes = append(changes, event)
	}
	w, warnings := w.warn(p, ticked)
	for _, d := range w.deadlines(p) {
		w.RecomputeAt = earliest(w.RecomputeAt, Timestamp(d.actAt()))
	}
	w.CountsProcesses = w.countsProcesses(p)
	return w, append(changes, warnings...)
}

// basis is the start of a policy's duration: the last change of the desired state, the last activity, or the creation.
// Each basis has its own warning.
type basis int

const (
	desiredState basis = iota
	idle
	age
)

// lastWarning returns a pointer to the field of w that stores the deadline of the last warning.
func lastWarning(w *Workspace, b basis) *time.Time {
	switch b {
	case age:
		return &w.WarnedAgeDeadline
	case idle:
		return &w.WarnedIdleDeadline
	default:
		return &w.WarnedStateDeadline
	}
}

// deadline is an expiry with its warning.
type deadline struct {
	Expiry

	basis basis
	// length of the policy.
	length time.Duration
	// warning is the time between the warning and the expiry; 0 for no warning.
	warning time.Duration
	// warned reports whether the user was warned of this deadline.
	warned bool
	// since is the last activity, for an idle workspace.
	since time.Time
	// knownUntil is the time until which it is known what moves the deadline; nil if nothing does.
	knownUntil *time.Time
}

// deadlines returns up to three deadlines: they count from the last change of the desired state, from the last activity
// and from the creation.
func (w Workspace) deadlines(p AgePolicies) []deadline {
	all := make([]deadline, 0, 3)
	add := func(b basis, policy events.ExpiryPolicy, to DesiredState, since time.Time, length time.Duration) {
		if length <= 0 {
			return
		}
		expiry := Expiry{Policy: policy, To: to, At: since.Add(length)}
		if b == idle {
			expiry.At = latest(expiry.At, w.ExtendedUntil)
		}
		d := deadline{Expiry: expiry, basis: b, length: length, warning: min(p.Warning, length)}
		if last := *lastWarning(&w, b); !last.Before(d.At) {
			d.At, d.warned = last, true
		}
		if b == idle {
			d.since, d.knownUntil = since, &p.ActivityReadUntil
		}
		all = append(all, d)
	}
	switch w.DesiredState {
	case DesiredRunning, DesiredRestartRequested:
		add(desiredState, events.ExpiryPolicyStopAfterRunning, DesiredStopped, w.DesiredStateSince, p.StopAfterRunning)
		add(idle, events.ExpiryPolicyStopAfterIdle, DesiredStopped, w.IdleSince(), w.StopAfterIdle(p))
	case DesiredStopped:
		add(
			desiredState,
			events.ExpiryPolicyTerminateAfterStopped,
			DesiredTerminated,
			w.DesiredStateSince,
			p.TerminateAfterStopped,
		)
	case DesiredTerminated:
		return nil
	}
	add(age, events.ExpiryPolicyMaxAge, DesiredTerminated, w.CreatedAt, p.MaxAge)
	return all
}

// actAt is the time of the next action: the warning or the expiry.
func (d deadline) actAt() time.Time {
	if d.warned || d.warning == 0 {
		return d.At
	}
	return d.At.Add(-d.warning)
}

// hasPassed reports whether the clock is at or after a time, and nothing that is unknown yet may move the deadline.
func (d deadline) hasPassed(t, clock time.Time) bool {
	return !clock.IsZero() && !clock.Before(t) && (d.knownUntil == nil || !d.knownUntil.Before(t))
}

// warn sends one warning per deadline. It clears the stored warning if the deadline no longer exists, after a
// change of the configuration. Then a later deadline gets a new warning.
func (w Workspace) warn(p AgePolicies, clock time.Time) (Workspace, []Event) {
	var warnings []Event
	valid := map[basis]bool{}
	for _, d := range w.deadlines(p) {
		if !d.warned && d.warning > 0 && d.hasPassed(d.actAt(), clock) {
			if earliestEnd := clock.Add(d.warning); d.At.Before(earliestEnd) {
				d.At = earliestEnd
			}
			d.At = d.At.UTC().Add(time.Millisecond - 1).Truncate(time.Millisecond)
			d.warned, *lastWarning(&w, d.basis) = true, d.At
			warnings = append(warnings, w.expiryWarning(d.Expiry, clock, d.warningMessage(w.Name)))
		}
		valid[d.basis] = d.warned
	}
	for _, b := range []basis{desiredState, idle, age} {
		if !valid[b] {
			*lastWarning(&w, b) = time.Time{}
		}
	}
	return w, warnings
}

// due returns the passed deadline. Termination has priority over stop.
func (w Workspace) due(p AgePolicies, clock time.Time) (deadline, bool) {
	var found deadline
	for _, d := range w.deadlines(p) {
		passed := (d.warned || d.warning == 0) && d.hasPassed(d.At, clock)
		if passed && (found.At.IsZero() || d.To == DesiredTerminated) {
			found = d
		}
	}
	return found, !found.At.IsZero()
}

// warningMessage tells the user what happens at the deadline and how to avoid it.
func (d deadline) warningMessage(name string) string {
	at, length := d.At.Format(time.RFC3339), shortDuration(d.length)
	switch d.Policy {
	case events.ExpiryPolicyStopAfterRunning:
		return fmt.Sprintf("workspace %s will be stopped at %s: its agent lets workspaces run for %s; "+
			"restart it to run it longer", name, at, length)
	case events.ExpiryPolicyStopAfterIdle:
		return fmt.Sprintf("workspace %s will be stopped at %s: nobody has been active in it since %s; "+
			"use it, or keep it running (lockstep ws extend)", name, at, d.since.UTC().Format(time.RFC3339))
	case events.ExpiryPolicyTerminateAfterStopped:
		return fmt.Sprintf("workspace %s and its volume will be deleted at %s: its agent keeps stopped workspaces for %s; "+
			"start it to keep it", name, at, length)
	default:
		return fmt.Sprintf("workspace %s and its volume will be deleted at %s: its agent keeps workspaces for %s; "+
			"save what you need elsewhere", name, at, length)
	}
}

// endMessage tells the user what happened at the deadline.
func (d deadline) endMessage(name string) string {
	length := shortDuration(d.length)
	switch d.Policy {
	case events.ExpiryPolicyStopAfterRunning:
		return fmt.Sprintf(
			"workspace %s is stopped: it ran for %s, the limit of its agent; start it to continue",
			name,
			length,
		)
	case events.ExpiryPolicyStopAfterIdle:
		return fmt.Sprintf("workspace %s is stopped: nobody has been active in it since %s; start it to continue",
			name, d.since.UTC().Format(time.RFC3339))
	case events.ExpiryPolicyTerminateAfterStopped:
		return fmt.Sprintf("workspace %s is terminated: it was stopped for %s, the limit of its agent", name, length)
	default:
		return fmt.Sprintf("workspace %s is terminated: it is %s old, the limit of its agent", name, length)
	}
}

// shortDuration omits zero units: 8h instead of 8h0m0s.
func shortDuration(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// earliest returns the earlier of two times. Zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
