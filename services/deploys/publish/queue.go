package publish

import (
	"errors"

	"github.com/google/uuid"
)

// maxConflicts is the number of consecutive conflicts after which the batch is retried.
const maxConflicts = 5

// Queue holds the facts of one workload or environment in the order of publication.
type Queue struct {
	// Position of the newest known message about the workload.
	Position int64
	// Shift is the number that was added to the sequence numbers of the remaining facts.
	Shift int

	facts     []*Fact
	next      int
	conflicts int
}

// NewQueue returns a queue of at least one fact. position is that of the newest known message about the workload.
func NewQueue(facts []*Fact, position int64) *Queue { return &Queue{facts: facts, Position: position} }

// WorkloadID returns the id of the workload or environment.
func (q *Queue) WorkloadID() uuid.UUID { return q.facts[0].WorkloadID }

// Facts returns all facts.
func (q *Queue) Facts() []*Fact { return q.facts }

// Next returns the next fact to publish; nil if none is left. It skips known facts.
func (q *Queue) Next() *Fact {
	for q.next < len(q.facts) && q.facts[q.next].Known {
		q.next++
	}
	if q.next == len(q.facts) {
		return nil
	}
	return q.facts[q.next]
}

// SkipKnown skips the facts that the database has. It renumbers the others so that they follow the newest stored one.
func (q *Queue) SkipKnown(known map[string]bool, newestSequence int64) {
	for _, f := range q.facts {
		f.Known = known[f.ID()]
	}
	q.Next()
	q.renumber(int(newestSequence) + 1)
}

// Accept records that the stream stored the next fact.
func (q *Queue) Accept(position int64) {
	q.conflicts = 0
	q.facts[q.next].Position, q.Position = position, position
	q.next++
}

// Conflict records that the stream refused the next fact. It returns an error after too many consecutive conflicts.
func (q *Queue) Conflict() error {
	if q.conflicts++; q.conflicts > maxConflicts {
		return errors.New("the stream refused the facts repeatedly: another writer publishes on the same subjects")
	}
	return nil
}

// Merge compares the queue with the messages after the expected one, oldest first. It skips the facts that the stream
// has.
func (q *Queue) Merge(later []Published) {
	for i := range later {
		if q.next == len(q.facts) || !q.facts[q.next].matches(&later[i]) {
			continue
		}
		f := q.facts[q.next]
		f.DeployFact, f.encoded = later[i].DeployFact, nil
		q.Accept(later[i].Position)
		q.renumber(later[i].Sequence + 1) // the other writer may have numbered differently
	}
}

// ContinueAfter renumbers the remaining facts so that they follow the newest message of the stream. It reports whether
// the stream has facts that the database lacks.
func (q *Queue) ContinueAfter(newest *Published) bool {
	if newest.Sequence < q.facts[q.next].Sequence {
		return false
	}
	q.renumber(newest.Sequence + 1)
	return true
}

// renumber adds a number to the sequence numbers of the remaining facts, so that the first one has at least the given
// number.
func (q *Queue) renumber(first int) {
	if q.next == len(q.facts) {
		return
	}
	shift := first - q.facts[q.next].Sequence
	if shift <= 0 {
		return
	}
	for _, f := range q.facts[q.next:] {
		f.Sequence, f.encoded = f.Sequence+shift, nil
	}
	q.Shift += shift
}
