package history

import (
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// TrueRollout is a rollout that happened in the cluster.
type TrueRollout struct {
	ID       string
	Revision int
	Began    time.Time
	// Born is the creation time of the object with the revision. It is zero if an object was reused
	// or none is needed.
	Born time.Time
	// Done reports that the workload was complete at this revision.
	Done bool
	// Ends are the completion times that the controller reported.
	Ends []time.Time
}

// TrueWorkload is a workload from its creation to its deletion.
type TrueWorkload struct {
	UID, Name string
	Rollouts  []TrueRollout // in order
	Created   time.Time
	Deleted   time.Time // zero where it is there
	// Written holds the times at which its template was changed, to the second.
	Written []time.Time
}

// Rollouts compares published rollouts with those of the cluster. Each has one start and then one
// end, the right one, before the next starts. None is invented. A rollout may be missing, or its
// end unknown, only if a gap that touches an outage names its revision. A rollout that began and
// ended within one outage is ignored. Start and end times are those of the cluster.
func Rollouts(records []Record, truth []TrueWorkload, outages []Outage) Findings {
	c := rolloutCheck{outages: outages, published: map[string][]events.DeployFact{}, gaps: map[string][]events.Gap{}}
	for _, r := range records {
		fact, err := factOf(r)
		if err != nil {
			c.f.addf("sequence %d, %s: %v", r.Sequence, r.Subject, err)
			continue
		}
		c.take(fact)
	}
	for _, w := range truth {
		c.workload(w)
	}
	for _, id := range c.order {
		c.f.addf("rollout %s is invented", id)
	}
	return c.f
}

type rolloutCheck struct {
	f         Findings
	outages   []Outage
	order     []string // ids that were published and not yet found to be true
	published map[string][]events.DeployFact
	gaps      map[string][]events.Gap // by UID of the workload
	number    int
}

// take records a fact. Its sequence here is its position among all facts.
func (c *rolloutCheck) take(fact events.DeployFact) {
	c.number++
	if fact.Gap != nil {
		c.gaps[fact.Workload.UID] = append(c.gaps[fact.Workload.UID], *fact.Gap)
	}
	if fact.Rollout == nil || fact.Fact != events.FactStarted && !terminal(fact.Fact) {
		return
	}
	id := fact.Rollout.ID
	if c.published[id] == nil {
		c.order = append(c.order, id)
	}
	fact.Sequence = c.number
	c.published[id] = append(c.published[id], fact)
}

func (c *rolloutCheck) workload(w TrueWorkload) {
	last := 0
	for i, r := range w.Rollouts {
		facts := c.published[r.ID]
		c.order = slices.DeleteFunc(c.order, func(id string) bool { return id == r.ID })
		if len(facts) == 0 {
			if !c.inOutage(w, r) {
				c.f.addf("%s: rollout %s is missing", w.Name, r.ID)
			}
			continue
		}
		if facts[0].Fact != events.FactStarted || len(facts) > 2 || len(facts) == 2 && !terminal(facts[1].Fact) {
			c.f.addf("%s: rollout %s has the facts %v", w.Name, r.ID, names(facts))
			continue
		}
		if facts[0].Sequence < last {
			c.f.addf("%s: rollout %s starts before the one before it has ended", w.Name, r.ID)
		}
		last = facts[len(facts)-1].Sequence
		for _, fact := range facts {
			c.time(w, r, facts[0], fact)
		}
		if len(facts) == 1 {
			c.f.addf("%s: rollout %s has no end", w.Name, r.ID)
			continue
		}
		c.end(w, r, facts[1].Fact, i == len(w.Rollouts)-1)
	}
}

// time checks the reported times of a rollout.
func (c *rolloutCheck) time(w TrueWorkload, r TrueRollout, started, fact events.DeployFact) {
	var right []time.Time
	switch {
	case fact.Provenance != events.ProvenanceObserved: // what was left may be younger
		right = []time.Time{fact.OccurredAt}
	case fact.Fact == events.FactStarted && fact.TimeSource == events.TimeSourceCreationTimestamp:
		right = []time.Time{r.Born}
	case fact.Fact == events.FactStarted && fact.TimeSource == events.TimeSourceManagedFields:
		right = w.Written
	case fact.Fact == events.FactCompleted && fact.TimeSource == events.TimeSourceCondition:
		right = r.Ends
	default: // of what only the watcher saw the cluster has no time
		right = []time.Time{fact.OccurredAt}
	}
	if !slices.ContainsFunc(right, fact.OccurredAt.Equal) {
		c.f.addf(
			"%s: rollout %s is published to be %s at %s by its %s, which is one of %s",
			w.Name,
			r.ID,
			fact.Fact,
			fact.OccurredAt,
			fact.TimeSource,
			right,
		)
	}
	if fact.Fact != events.FactCompleted {
		return
	}
	occurred := fact.OccurredAt.Sub(started.OccurredAt).Milliseconds()
	observed := fact.ObservedAt.Sub(started.ObservedAt).Milliseconds()
	if took := fact.DurationMs; took == nil || int64(*took) != max(0, occurred) && int64(*took) != max(0, observed) {
		c.f.addf(
			"%s: rollout %s took %d ms by the cluster's time and %d ms as it was seen, which is not what is published",
			w.Name,
			r.ID,
			occurred,
			observed,
		)
	}
}

// end checks the reported end of a rollout.
func (c *rolloutCheck) end(w TrueWorkload, r TrueRollout, end events.Fact, newest bool) {
	right := false
	switch end {
	case events.FactUnknown:
		right = c.named(w.UID, r.Revision)
	case events.FactCompleted:
		right = r.Done
	case events.FactSuperseded:
		right = !r.Done && !newest
	case events.FactCancelled:
		right = !r.Done && (!newest || !w.Deleted.IsZero())
	default:
	}
	if !right {
		c.f.addf(
			"%s: rollout %s is published to be %s: done %t, newest %t, deleted %t",
			w.Name,
			r.ID,
			end,
			r.Done,
			newest,
			!w.Deleted.IsZero(),
		)
	}
}

// inOutage reports whether an outage explains a missing rollout.
func (c *rolloutCheck) inOutage(w TrueWorkload, r TrueRollout) bool {
	return c.named(w.UID, r.Revision) || !w.Deleted.IsZero() && slices.ContainsFunc(c.outages, func(o Outage) bool {
		return o.covers(r.Began) && o.covers(w.Deleted)
	})
}

// named reports whether a gap that touches an outage names the revision.
func (c *rolloutCheck) named(uid string, revision int) bool {
	return slices.ContainsFunc(c.gaps[uid], func(g events.Gap) bool {
		return slices.Contains(g.Revisions, revision) && slices.ContainsFunc(c.outages, func(o Outage) bool {
			return !g.Until.Before(o.From) && !g.Since.After(o.Until)
		})
	})
}

func names(facts []events.DeployFact) []events.Fact {
	all := make([]events.Fact, len(facts))
	for i, f := range facts {
		all[i] = f.Fact
	}
	return all
}
