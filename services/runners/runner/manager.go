package runner

import (
	"slices"
	"time"
)

// Info is what a process of a runner reports about itself. All texts may be empty.
type Info struct {
	Version, Revision, Platform, Architecture, Executor string
}

// Manager is one process of a runner, which GitLab calls a runner manager.
type Manager struct {
	ID, RunnerID int64
	// SystemID names the process; empty in old versions of the runner.
	SystemID string
	Info     Info
	// Address that the last contact came from.
	Address   string
	CreatedAt time.Time
	// ContactedAt is a recent contact; see [Contacts]. The zero time means never.
	ContactedAt time.Time
}

// Status of a runner or of one of its managers.
type Status string

// The status values. The rules and times are those that GitLab's documentation has in "Configuring runners", section
// "Runner statuses".
const (
	// Online: the last contact was within [OnlineFor].
	Online Status = "online"
	// Offline: the last contact was before that.
	Offline Status = "offline"
	// Stale: there was no contact for [StaleAfter], and the runner is older than that.
	Stale Status = "stale"
	// NeverContacted: there was no contact, and the runner is not stale.
	NeverContacted Status = "never_contacted"
)

const (
	// OnlineFor is how long a contact makes a runner online.
	OnlineFor = 2 * time.Hour
	// StaleAfter is the time without a contact after which a runner is stale.
	StaleAfter = 7 * 24 * time.Hour
)

// StatusOf returns the status of something that was created and last contacted at these times.
func StatusOf(createdAt, contactedAt, now time.Time) Status {
	last := contactedAt
	if last.IsZero() {
		last = createdAt
	}
	switch {
	case now.Sub(last) >= StaleAfter:
		return Stale
	case contactedAt.IsZero():
		return NeverContacted
	case now.Sub(contactedAt) < OnlineFor:
		return Online
	default:
		return Offline
	}
}

// Status returns the status of the manager.
func (m Manager) Status(now time.Time) Status { return StatusOf(m.CreatedAt, m.ContactedAt, now) }

// Status returns the status of the runner: that of its latest contact by any of its managers.
func (r *Runner) Status(managers []Manager, now time.Time) Status {
	return StatusOf(r.CreatedAt, LastContact(managers), now)
}

// LastContact returns the latest contact of the managers; the zero time if there was none.
func LastContact(managers []Manager) time.Time {
	if len(managers) == 0 {
		return time.Time{}
	}
	return slices.MaxFunc(managers, func(a, b Manager) int { return a.ContactedAt.Compare(b.ContactedAt) }).ContactedAt
}
