package sink

import (
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/retry"
	"lockstep.internal/schemas/gen/events"
)

// position is where a fact is stored.
type position struct {
	stream   string
	sequence uint64
}

// queued is one unfinished fact.
type queued struct {
	position  position
	order     uint64        // of receipt
	stored    nats.Msg      // subject, headers and data as stored
	msg       jetstream.Msg // the latest redelivery, to be acknowledged
	key       string
	fact      events.DeployFact
	event     event.Event
	requested bool  // by an operator
	decodeErr error // nil if the fact is readable
}

// queue holds the unfinished facts of one thread in order.
type queue struct {
	thread string
	facts  []*queued
	busy   bool // a delivery is in progress

	// Failures of the thread since its last success.
	failures  int
	failingAt time.Time

	// Attempts to deliver the first fact.
	attempt   int
	triedAt   time.Time
	retryAt   time.Time
	backoff   *retry.Backoff
	lastError error
}

// urgent reports whether a fact other than progressed waits. Urgent queues are delivered first.
func (q *queue) urgent() bool {
	for _, f := range q.facts {
		if f.fact.Fact != events.FactProgressed {
			return true
		}
	}
	return false
}

// before reports whether the queue is delivered before another one.
func (q *queue) before(other *queue) bool {
	if urgent := q.urgent(); urgent != other.urgent() {
		return urgent
	}
	return q.facts[0].order < other.facts[0].order
}

// head returns the facts of the next delivery.
func (q *queue) head(t Traits) []*queued {
	n := 1
	switch {
	case q.facts[0].decodeErr != nil:
	case t.Latest:
		n = len(q.facts)
	case t.Batch > 1:
		n = min(len(q.facts), t.Batch)
	}
	return append([]*queued(nil), q.facts[:n]...)
}

// failed records a failed attempt and sets the time of the next one.
func (q *queue) failed(err error, now time.Time, limits Retry) {
	if q.failures == 0 {
		q.failingAt = now
	}
	q.failures++
	if q.attempt == 0 {
		q.triedAt = now
		q.backoff = retry.Policy{Min: limits.Min, Max: limits.Max}.Backoff()
	}
	q.attempt++
	q.lastError = err
	delay := q.backoff.Next()
	if after, ok := asRetryAfter(err); ok {
		delay = max(after, limits.Min)
	}
	q.retryAt = now.Add(delay)
}

// advanced resets the attempts, because the queue has another first fact.
func (q *queue) advanced() {
	q.attempt, q.backoff, q.lastError = 0, nil, nil
	q.triedAt, q.retryAt = time.Time{}, time.Time{}
}

// succeeded resets the attempts and the failures of the thread.
func (q *queue) succeeded() {
	q.advanced()
	q.failures, q.failingAt = 0, time.Time{}
}
