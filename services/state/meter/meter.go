package meter

import (
	"fmt"
	"hash/maphash"
	"time"
)

const (
	// Window is the time for which the hourly limits count: each hour of the clock.
	Window = time.Hour
	// Day is the time for which the daily limits count. It ends with the newest message and is up to an hour longer.
	Day = 24 * time.Hour
	// repeatInterval is the time after which a message during an excess is reported again.
	repeatInterval = time.Minute
)

// Limits of one agent on one stream.
type Limits struct {
	// Messages and Bytes limit a [Window]. Bytes includes the headers.
	Messages int64
	Bytes    int64
	// DailyBytes limits a [Day], by stream. A stream that is missing has no limit.
	DailyBytes map[string]int64
	// DailySubjects limits the distinct subjects of a [Day]. Each one costs the server memory for as long as its messages
	// live.
	DailySubjects int
}

// Minimum returns the lowest permitted limits: those of one full resync of 50,000 workspaces.
func Minimum() Limits { return Limits{Messages: 350_000, Bytes: 640 << 20, DailySubjects: 50_000} }

// Default returns the default limits, which permit two such resyncs in an hour. The daily bytes depend on the size of
// the streams.
func Default() Limits { return Limits{Messages: 1_000_000, Bytes: 3 << 29, DailySubjects: 150_000} }

// Message is a stored message of an agent.
type Message struct {
	AgentID int64
	Stream  string
	Subject string
	Bytes   int
	Stored  time.Time
}

// Excess reports that an agent has exceeded a limit.
type Excess struct {
	AgentID int64
	// Reason names the limit.
	Reason string
	// Until is the time from which the limits permit messages again.
	Until time.Time
	// Repeated is true if the excess was reported before. The agent still publishes, so its block may be lost.
	Repeated bool
}

// Meter counts the messages of each agent. It is not safe for concurrent use.
type Meter struct {
	limits Limits
	seed   maphash.Seed
	agents map[key]*usage
	// newest is the hour of the newest message of each stream.
	newest map[string]hour
}

type key struct {
	agentID int64
	stream  string
}

// usage is what an agent has published on a stream.
type usage struct {
	window window
	day    day
	// until is the end of the last excess, reported the time of the message that was reported last.
	until, reported time.Time
}

// New returns a meter.
func New(limits Limits) *Meter {
	return &Meter{limits: limits, seed: maphash.MakeSeed(), agents: map[key]*usage{}, newest: map[string]hour{}}
}

// Add counts a message. The messages of a stream must be in order. It returns true for the first message that exceeds a
// limit, and again for the first one after the end of the excess if a limit is still exceeded. During the excess it
// returns true for a message that was stored more than a minute after the last report.
func (m *Meter) Add(message Message) (Excess, bool) {
	if now := hourOf(message.Stored); now > m.newest[message.Stream] {
		m.newest[message.Stream] = now
		m.forget(message.Stream, message.Stored)
	}
	k := key{message.AgentID, message.Stream}
	u := m.agents[k]
	if u == nil {
		u = &usage{day: day{subjects: map[uint64]hour{}}}
		m.agents[k] = u
	}
	u.window.add(message)
	u.day.add(message, maphash.String(m.seed, message.Subject))
	repeated := message.Stored.Before(u.until)
	if repeated && message.Stored.Sub(u.reported) <= repeatInterval {
		return Excess{}, false
	}
	excess := Excess{AgentID: message.AgentID, Repeated: repeated}
	for _, check := range []func(key, *usage) (string, time.Time){m.checkWindow, m.checkBytes, m.checkSubjects} {
		if reason, until := check(k, u); until.After(excess.Until) {
			excess.Reason, excess.Until = reason, until
		}
	}
	if excess.Reason == "" {
		return Excess{}, false
	}
	u.until, u.reported = excess.Until, message.Stored
	return excess, true
}

// forget drops what no longer counts on a stream. An agent without hours has no excess, either.
func (m *Meter) forget(stream string, now time.Time) {
	for k, u := range m.agents {
		if k.stream != stream {
			continue
		}
		u.day.drop(now)
		if len(u.day.hours) == 0 {
			delete(m.agents, k)
		}
	}
}

// Exceeding returns the agents whose excess has not ended.
func (m *Meter) Exceeding(now time.Time) []int64 {
	agents := []int64{}
	for k, u := range m.agents {
		if now.Before(u.until) {
			agents = append(agents, k.agentID)
		}
	}
	return agents
}

// Usage is how much of its limits an agent uses on a stream.
type Usage struct {
	AgentID int64
	Stream  string
	// Part is the use of the limit that is closest to its maximum; 1 is all.
	Part float64
}

// Used returns the agents that use at least a part of a limit, in any order.
func (m *Meter) Used(now time.Time, least float64) []Usage {
	usages := []Usage{}
	for k, u := range m.agents {
		part := max(m.usedWindow(u, now), float64(u.day.subjectsSince(now))/float64(m.limits.DailySubjects))
		if limit, limited := m.limits.DailyBytes[k.stream]; limited {
			part = max(part, float64(u.day.bytesSince(now))/float64(limit))
		}
		if part >= least {
			usages = append(usages, Usage{AgentID: k.agentID, Stream: k.stream, Part: part})
		}
	}
	return usages
}

func (m *Meter) usedWindow(u *usage, now time.Time) float64 {
	if now.Sub(u.window.since) >= Window {
		return 0
	}
	return max(float64(u.window.messages)/float64(m.limits.Messages), float64(u.window.bytes)/float64(m.limits.Bytes))
}

func (m *Meter) checkWindow(_ key, u *usage) (string, time.Time) {
	until := u.window.since.Add(Window)
	switch {
	case u.window.messages > m.limits.Messages:
		return hourly(m.limits.Messages, "messages"), until
	case u.window.bytes > m.limits.Bytes:
		return hourly(m.limits.Bytes, "bytes"), until
	default:
		return "", time.Time{}
	}
}

func hourly(limit int64, what string) string {
	return fmt.Sprintf("published more than %d %s within an hour, the limit of agents.hourly_%s", limit, what, what)
}

func (m *Meter) checkBytes(k key, u *usage) (string, time.Time) {
	limit, limited := m.limits.DailyBytes[k.stream]
	if !limited || u.day.bytes <= limit {
		return "", time.Time{}
	}
	return fmt.Sprintf("published more than %d bytes on %s within 24 hours, the limit of agents.daily_share: "+
		"if it needs as much, raise streams.storage", limit, k.stream), u.day.fits(limit)
}

func (m *Meter) checkSubjects(_ key, u *usage) (string, time.Time) {
	if len(u.day.subjects) <= m.limits.DailySubjects {
		return "", time.Time{}
	}
	return fmt.Sprintf("published more than %d subjects within 24 hours, the limit of agents.daily_subjects",
		m.limits.DailySubjects), u.day.fewerSubjects(m.limits.DailySubjects)
}

// window counts an hour.
type window struct {
	since           time.Time
	messages, bytes int64
}

func (w *window) add(message Message) {
	if message.Stored.Sub(w.since) >= Window {
		*w = window{since: message.Stored.Truncate(Window)}
	}
	w.messages++
	w.bytes += int64(message.Bytes)
}
