package domain

import (
	"fmt"
	"strings"
	"time"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

// AgePolicies end workspaces that nobody ends. All time in them is the agent's; a duration of 0 means never.
type AgePolicies struct {
	// StopAfterRunning is how long a workspace may be wanted running at a time.
	StopAfterRunning time.Duration
	// TerminateAfterStopped is how long one may be wanted stopped.
	TerminateAfterStopped time.Duration
	// MaxAge is how long one may live.
	MaxAge time.Duration
	// Warning is how long before one of these the user is warned, and what the user has left at least from then on, also where an end
	// is nearer when it is first seen. It is cut to the length of the policy. With 0 nobody is warned.
	Warning time.Duration
}

// Expiry is the end of a workspace's running, or of its life, by a policy.
type Expiry struct {
	Policy events.ExpiryPolicy
	// To is what is wanted then.
	To DesiredState
	// At is when, by the agent's clock.
	At time.Time
}

// ExpiryWarning is an expiry that the user is to be told of.
type ExpiryWarning struct {
	Expiry

	// WarnedAt is the agent's time of the warning.
	WarnedAt time.Time
	// Message says what will happen and what to do about it.
	Message string
}

// Expiry returns the next end of the workspace by its agent's policies, if nothing else happens; false where there is none.
func (w Workspace) Expiry(p AgePolicies) (Expiry, bool) {
	var next Expiry
	for _, e := range endsOf(&w, p) {
		if next.At.IsZero() || e.before(next) {
			next = e.Expiry
		}
	}
	return next, !next.At.IsZero()
}

// before is that an expiry is the one that counts of two. Of two at the same time that is the one for ever.
func (e Expiry) before(other Expiry) bool {
	return e.At.Before(other.At) || e.At.Equal(other.At) && e.To == DesiredTerminated
}

// Expire follows every Observe: it brings about the end that is due by the agent's clock, warns of those that are near, and says when the
// workspace is to be looked at again. Before the first tick of the agent nothing is near. What is to be terminated is left alone.
func (w Workspace) Expire(p AgePolicies, clock time.Time) Workspace {
	w.Warnings = nil
	if w.DesiredState == DesiredTerminated || w.ActualState == actualstate.Terminated {
		return w
	}
	if e, due := w.due(p, clock); due {
		w = w.desireState(e.To, Cause{Kind: events.DesiredStateCause(e.Policy), Message: e.ended(w.Name)}, clock)
	}
	w = w.warn(p, clock)
	for _, e := range endsOf(&w, p) {
		w.ReconsiderAt = earliest(w.ReconsiderAt, instant(e.look()))
	}
	return w
}

// end is an expiry with what leads to it.
type end struct {
	Expiry

	// lasts is the length of the policy, and warning how long before its deadline the user is warned; 0 when nobody is.
	lasts, warning time.Duration
	// told is the end that the user was warned of, a field of the workspace; warned is that it is this one.
	told   *time.Time
	warned bool
}

// endsOf are what the policies hold for the workspace: one by what is wanted, one by its age.
func endsOf(w *Workspace, p AgePolicies) []end {
	all := make([]end, 0, 2)
	add := func(policy events.ExpiryPolicy, to DesiredState, since time.Time, lasts time.Duration, told *time.Time) {
		if lasts <= 0 {
			return
		}
		e := end{Expiry: Expiry{Policy: policy, To: to, At: since.Add(lasts)}, lasts: lasts, warning: min(p.Warning, lasts), told: told}
		if !told.Before(e.At) {
			e.At, e.warned = *told, true
		}
		all = append(all, e)
	}
	switch w.DesiredState {
	case DesiredRunning, DesiredRestartRequested:
		add(events.ExpiryPolicyStopAfterRunning, DesiredStopped, w.DesiredStateSince, p.StopAfterRunning, &w.ExpiryWarnedOf)
	case DesiredStopped:
		add(events.ExpiryPolicyTerminateAfterStopped, DesiredTerminated, w.DesiredStateSince, p.TerminateAfterStopped, &w.ExpiryWarnedOf)
	case DesiredTerminated:
		return nil
	}
	add(events.ExpiryPolicyMaxAge, DesiredTerminated, w.CreatedAt, p.MaxAge, &w.AgeWarnedOf)
	return all
}

// look is when something is to be done about the end.
func (e end) look() time.Time {
	if e.warned || e.warning == 0 {
		return e.At
	}
	return e.At.Add(-e.warning)
}

// warn warns of each end that is near, once. A warning that no end keeps any longer, since the configuration was changed, is forgotten: should the end come back, it
// is warned of again.
func (w Workspace) warn(p AgePolicies, clock time.Time) Workspace {
	kept := map[*time.Time]bool{}
	for _, e := range endsOf(&w, p) {
		if !e.warned && e.warning > 0 && !clock.IsZero() && !clock.Before(e.look()) {
			if left := clock.Add(e.warning); e.At.Before(left) {
				e.At = left
			}
			e.At = e.At.UTC().Add(time.Millisecond - 1).Truncate(time.Millisecond)
			e.warned, *e.told = true, e.At
			w.Warnings = append(w.Warnings, ExpiryWarning{Expiry: e.Expiry, WarnedAt: instant(clock), Message: e.near(w.Name)})
		}
		kept[e.told] = e.warned
	}
	for _, told := range []*time.Time{&w.ExpiryWarnedOf, &w.AgeWarnedOf} {
		if !kept[told] {
			*told = time.Time{}
		}
	}
	return w
}

// due is the end that has come, of which the user was warned in time. What ends for ever need not be stopped before.
func (w Workspace) due(p AgePolicies, clock time.Time) (end, bool) {
	var found end
	for _, e := range endsOf(&w, p) {
		if (e.warned || e.warning == 0) && !clock.IsZero() && !clock.Before(e.At) && (found.At.IsZero() || e.To == DesiredTerminated) {
			found = e
		}
	}
	return found, !found.At.IsZero()
}

// near tells the user of the end to come.
func (e end) near(name string) string {
	at := e.At.Format(time.RFC3339)
	switch e.Policy {
	case events.ExpiryPolicyStopAfterRunning:
		return fmt.Sprintf("workspace %s will be stopped at %s: its agent lets workspaces run for %s at a time; restart it to run it for longer", name, at, spoken(e.lasts))
	case events.ExpiryPolicyTerminateAfterStopped:
		return fmt.Sprintf("workspace %s and its volume will be deleted at %s: its agent keeps stopped workspaces for %s; start it to keep it", name, at, spoken(e.lasts))
	default:
		return fmt.Sprintf("workspace %s and its volume will be deleted at %s: its agent keeps workspaces for %s; save what you need of it elsewhere", name, at, spoken(e.lasts))
	}
}

// ended tells the user of the end that has come.
func (e end) ended(name string) string {
	switch e.Policy {
	case events.ExpiryPolicyStopAfterRunning:
		return fmt.Sprintf("workspace %s is stopped: it has run for the %s that its agent lets workspaces run at a time; start it to go on", name, spoken(e.lasts))
	case events.ExpiryPolicyTerminateAfterStopped:
		return fmt.Sprintf("workspace %s is terminated: it was stopped for the %s that its agent keeps stopped workspaces", name, spoken(e.lasts))
	default:
		return fmt.Sprintf("workspace %s is terminated: it has reached the age of %s that its agent keeps workspaces for", name, spoken(e.lasts))
	}
}

// spoken is a duration without its units of zero: 8h for 8h0m0s.
func spoken(d time.Duration) string {
	text := d.String()
	for _, nothing := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, nothing) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// earliest is the earlier of two times, of which zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
