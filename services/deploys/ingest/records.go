package ingest

import (
	"bytes"
	"slices"

	"github.com/google/uuid"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/publish"
)

// entry is a record with the changes of the batch.
type entry[S any] struct {
	*Record[S]

	facts   []*publish.Fact
	queue   *publish.Queue
	changed bool
}

func (e *entry[S]) addFacts(facts []events.DeployFact, traceParent string) {
	for i := range facts {
		e.facts = append(e.facts, &publish.Fact{DeployFact: facts[i], WorkloadID: e.ID, TraceParent: traceParent})
	}
}

// records are the workloads, or the environments, that a batch needs. Entries are copies: cached and loaded records do
// not change.
type records[S any] struct {
	cached  map[uuid.UUID]*Record[S]
	loaded  map[uuid.UUID]*Record[S]
	touched map[uuid.UUID]*entry[S]
	// order of the first touch.
	order []*entry[S]
}

func newRecords[S any](cached map[uuid.UUID]*Record[S]) *records[S] {
	return &records[S]{cached: cached, loaded: map[uuid.UUID]*Record[S]{}, touched: map[uuid.UUID]*entry[S]{}}
}

func (r *records[S]) load(loaded []*Record[S]) {
	for _, record := range loaded {
		r.loaded[record.ID] = record
	}
}

// has reports whether the record is in memory.
func (r *records[S]) has(id uuid.UUID) bool {
	_, cached := r.cached[id]
	_, loaded := r.loaded[id]
	return cached || loaded
}

// touch returns the entry of a record. An unknown record gets the initial state.
func (r *records[S]) touch(id uuid.UUID, initial S) *entry[S] {
	if e := r.touched[id]; e != nil {
		return e
	}
	record := Record[S]{ID: id, State: initial}
	if cached, known := r.cached[id]; known {
		record = *cached
	} else if loaded, known := r.loaded[id]; known {
		record = *loaded
	}
	e := &entry[S]{Record: &record}
	r.touched[id] = e
	r.order = append(r.order, e)
	return e
}

// match returns the entries of all matching touched or loaded records, ordered by id. It touches them.
func (r *records[S]) match(matches func(*Record[S]) bool) []*entry[S] {
	var found []*entry[S]
	for _, e := range r.touched {
		if matches(e.Record) {
			found = append(found, e)
		}
	}
	for id, loaded := range r.loaded {
		if r.touched[id] == nil && matches(loaded) {
			found = append(found, r.touch(id, loaded.State))
		}
	}
	sortByID(found)
	return found
}

func sortByID[S any](entries []*entry[S]) {
	slices.SortFunc(entries, func(a, b *entry[S]) int { return bytes.Compare(a.ID[:], b.ID[:]) })
}

// queues returns the queues of the entries with facts.
func (r *records[S]) queues() []*publish.Queue {
	var queues []*publish.Queue
	for _, e := range r.order {
		if len(e.facts) > 0 {
			e.queue = publish.NewQueue(e.facts, e.Position)
			queues = append(queues, e.queue)
		}
	}
	return queues
}
