package meter

import (
	"fmt"
	"hash/maphash"
	"time"
)

// Window is the time for which the limits count. It begins with the first message of an agent, and again with the first
// one after its end.
const Window = time.Hour

// Limits of one agent within a [Window].
type Limits struct {
	Messages int64
	// Bytes of the messages with their headers.
	Bytes int64
	// Subjects is the number of distinct subjects. Each one costs the server memory for as long as its messages live.
	Subjects int
}

// Minimum returns the lowest permitted limits: those of one full resync of 50,000 workspaces.
func Minimum() Limits { return Limits{Messages: 350_000, Bytes: 640 << 20, Subjects: 50_000} }

// Default returns the default limits, which permit two such resyncs in a window.
func Default() Limits { return Limits{Messages: 1_000_000, Bytes: 3 << 29, Subjects: 150_000} }

// Message is a stored message of an agent.
type Message struct {
	AgentID int64
	Subject string
	Bytes   int
	Stored  time.Time
}

// Excess reports that an agent has exceeded a limit.
type Excess struct {
	AgentID int64
	// Reason names the limit.
	Reason string
	// Since is the begin of the window, Until its end.
	Since, Until time.Time
}

// Meter counts the messages of each agent. It is not safe for concurrent use.
type Meter struct {
	limits Limits
	seed   maphash.Seed
	agents map[int64]*usage
}

type usage struct {
	since           time.Time
	messages, bytes int64
	// subjects has the hash of each subject.
	subjects map[uint64]struct{}
	exceeded bool
}

// New returns a meter.
func New(limits Limits) *Meter {
	return &Meter{limits: limits, seed: maphash.MakeSeed(), agents: map[int64]*usage{}}
}

// Add counts a message. It returns true for the first message of a window that exceeds a limit.
func (m *Meter) Add(message Message) (Excess, bool) {
	u := m.agents[message.AgentID]
	if u == nil || message.Stored.Sub(u.since) >= Window {
		u = &usage{since: message.Stored, subjects: map[uint64]struct{}{}}
		m.agents[message.AgentID] = u
	}
	if u.exceeded {
		return Excess{}, false
	}
	u.messages++
	u.bytes += int64(message.Bytes)
	u.subjects[maphash.String(m.seed, message.Subject)] = struct{}{}
	reason := m.limits.exceededBy(u)
	if reason == "" {
		return Excess{}, false
	}
	u.exceeded, u.subjects = true, nil
	return Excess{AgentID: message.AgentID, Reason: reason, Since: u.since, Until: u.since.Add(Window)}, true
}

func (l Limits) exceededBy(u *usage) string {
	for _, limit := range []struct {
		what      string
		used, max int64
	}{
		{"messages", u.messages, l.Messages},
		{"bytes", u.bytes, l.Bytes},
		{"subjects", int64(len(u.subjects)), int64(l.Subjects)},
	} {
		if limit.used > limit.max {
			return fmt.Sprintf("published more than %d %s within an hour, the limit of agents.hourly_%s",
				limit.max, limit.what, limit.what)
		}
	}
	return ""
}
