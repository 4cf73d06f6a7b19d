package sink

import (
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
)

// place is where a fact is stored.
type place struct {
	stream   string
	sequence uint64
}

// entry is one fact that is not done with.
type entry struct {
	place  place
	order  uint64        // of arrival
	stored nats.Msg      // the subject, headers and data, as they are stored
	msg    jetstream.Msg // to be acknowledged: another one once it was delivered again
	key    string
	fact   events.DeployFact
	event  event.Event
	again  bool
	broken error // why it cannot be read
}

// lane is what waits of one thread, in order.
type lane struct {
	thread  string
	queue   []*entry
	serving bool

	// Since something of it got through last.
	failures int
	failing  time.Time

	// Of what is at its head.
	attempt int
	since   time.Time
	due     time.Time
	pause   *backoff.ExponentialBackOff
	why     error
}

// urgent says that something other than progress waits: what people wait for goes before what they merely watch.
func (l *lane) urgent() bool {
	for _, e := range l.queue {
		if e.fact.Fact != events.FactProgressed {
			return true
		}
	}
	return false
}

// before says which of two lanes is served first.
func (l *lane) before(other *lane) bool {
	if mine, its := l.urgent(), other.urgent(); mine != its {
		return mine
	}
	return l.queue[0].order < other.queue[0].order
}

// head are the facts that are delivered next, together.
func (l *lane) head(t Traits) []*entry {
	n := 1
	switch {
	case l.queue[0].broken != nil:
	case t.Latest:
		n = len(l.queue)
	case t.Batch > 1:
		n = min(len(l.queue), t.Batch)
	}
	return append([]*entry(nil), l.queue[:n]...)
}

// failed notes a failure and says how long to wait.
func (l *lane) failed(err error, now time.Time, retry Retry) {
	if l.failures == 0 {
		l.failing = now
	}
	l.failures++
	if l.attempt == 0 {
		l.since = now
		l.pause = backoff.NewExponentialBackOff()
		l.pause.InitialInterval, l.pause.MaxInterval, l.pause.Multiplier = retry.Min, retry.Max, 2
	}
	l.attempt++
	l.why = err
	delay := min(l.pause.NextBackOff(), retry.Max)
	if after, ok := asRetryAfter(err); ok {
		delay = max(after, retry.Min)
	}
	l.due = now.Add(delay)
}

// passed says that its head is another: what failed before says nothing of that.
func (l *lane) passed() {
	l.attempt, l.pause, l.why = 0, nil, nil
	l.since, l.due = time.Time{}, time.Time{}
}

// succeeded forgets the failures.
func (l *lane) succeeded() {
	l.passed()
	l.failures, l.failing = 0, time.Time{}
}
