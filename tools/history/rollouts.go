package history

import (
	"slices"
	"time"

	"lockstep.internal/schemas/gen/events"
)

// ExpectedRollout is a rollout in the cluster, derived from the versions of objects.
type ExpectedRollout struct {
	ID        string
	Revision  int
	StartedAt time.Time
	// CreatedAt is the creation time of the object with the revision. It is zero if an object was reused
	// or none is needed.
	CreatedAt time.Time
	// Completed reports whether the workload was complete at this revision.
	Completed bool
	// CompletedAt holds the completion times that the controller reported.
	CompletedAt []time.Time
	// Traced reports whether OBSERVED has a version of the ReplicaSet or ControllerRevision with the revision.
	Traced bool
}

// ExpectedWorkload is a workload from its creation to its deletion.
type ExpectedWorkload struct {
	UID, Name string
	Rollouts  []ExpectedRollout // in order
	Created   time.Time
	Deleted   time.Time // zero if it still exists
	// TemplateChangedAt holds the times of changes of its template, to the second.
	TemplateChangedAt []time.Time
}

// Rollouts compares published rollouts with those of the cluster. Each has one start and then one
// end, the right one, before the next starts. There are no others. A rollout may be missing, or its
// end unknown, only if a gap that overlaps an outage names its revision. A rollout without traces that
// started and ended within one outage is ignored. Start and end times are those of the cluster.
func Rollouts(records []Record, expected []ExpectedWorkload, outages []Outage) Findings {
	c := rolloutCheck{outages: outages, published: map[string][]events.DeployFact{}, gaps: map[string][]events.Gap{}}
	for _, r := range records {
		fact, err := factOf(r)
		if err != nil {
			c.f.addf("sequence %d, %s: %v", r.Sequence, r.Subject, err)
			continue
		}
		c.record(fact)
	}
	for _, w := range expected {
		c.workload(w)
	}
	for _, id := range c.order {
		c.f.addf("rollout %s did not happen", id)
	}
	return c.f
}

type rolloutCheck struct {
	f         Findings
	outages   []Outage
	order     []string // published ids that no expected rollout has matched
	published map[string][]events.DeployFact
	gaps      map[string][]events.Gap // by UID of the workload
	number    int
}

// record records a fact. Its sequence here is its position among all facts.
func (c *rolloutCheck) record(fact events.DeployFact) {
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

func (c *rolloutCheck) workload(w ExpectedWorkload) {
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
			c.f.addf("%s: rollout %s starts before the previous one has ended", w.Name, r.ID)
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
func (c *rolloutCheck) time(w ExpectedWorkload, r ExpectedRollout, started, fact events.DeployFact) {
	var want []time.Time
	switch {
	case fact.Provenance != events.ProvenanceObserved: // the remaining objects may be newer
		want = []time.Time{fact.OccurredAt}
	case fact.Fact == events.FactStarted && fact.TimeSource == events.TimeSourceCreationTimestamp:
		want = []time.Time{r.CreatedAt}
	case fact.Fact == events.FactStarted && fact.TimeSource == events.TimeSourceManagedFields:
		want = w.TemplateChangedAt
	case fact.Fact == events.FactCompleted && fact.TimeSource == events.TimeSourceCondition:
		want = r.CompletedAt
	default: // the cluster has no timestamp for this fact
		want = []time.Time{fact.OccurredAt}
	}
	if !slices.ContainsFunc(want, fact.OccurredAt.Equal) {
		c.f.addf("%s: rollout %s: %s at %s (%s), want one of %s", w.Name, r.ID, fact.Fact,
			fact.OccurredAt, fact.TimeSource, want)
	}
	if fact.Fact != events.FactCompleted {
		return
	}
	occurred := fact.OccurredAt.Sub(started.OccurredAt).Milliseconds()
	observed := fact.ObservedAt.Sub(started.ObservedAt).Milliseconds()
	got := fact.DurationMs
	if got == nil || int64(*got) != max(0, occurred) && int64(*got) != max(0, observed) {
		c.f.addf("%s: rollout %s: published duration differs from %d ms (cluster) and %d ms (observed)",
			w.Name, r.ID, occurred, observed)
	}
}

// end checks the reported end of a rollout.
func (c *rolloutCheck) end(w ExpectedWorkload, r ExpectedRollout, end events.Fact, newest bool) {
	allowed := false
	switch end {
	case events.FactUnknown:
		allowed = c.named(w.UID, r.Revision)
	case events.FactCompleted:
		allowed = r.Completed
	case events.FactSuperseded:
		allowed = !r.Completed && !newest
	case events.FactCancelled:
		allowed = !r.Completed && (!newest || !w.Deleted.IsZero())
	default:
	}
	if !allowed {
		c.f.addf("%s: rollout %s: unexpected end %s (completed %t, newest %t, deleted %t)", w.Name, r.ID, end,
			r.Completed, newest, !w.Deleted.IsZero())
	}
}

// inOutage reports whether an outage explains a missing rollout.
func (c *rolloutCheck) inOutage(w ExpectedWorkload, r ExpectedRollout) bool {
	unseen := !r.Traced && !w.Deleted.IsZero()
	return c.named(w.UID, r.Revision) || unseen && slices.ContainsFunc(c.outages, func(o Outage) bool {
		return o.covers(r.StartedAt) && o.covers(w.Deleted)
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
