package rollout_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/rollout"
)

// lies are wrong facts. The comparison must notice each.
var lies = []struct {
	name  string
	of    events.Fact // the fact that the lie needs
	apply func(facts []events.DeployFact, at int) []events.DeployFact
}{
	{"a start is lost", started, drop},
	{"an end is lost", completed, drop},
	{"a rollout is lost", started, func(facts []events.DeployFact, at int) []events.DeployFact {
		id := facts[at].Rollout.ID
		return slices.DeleteFunc(facts, func(f events.DeployFact) bool { return f.Rollout != nil && f.Rollout.ID == id })
	}},
	{"a removal is lost", removed, drop},
	{"a rollback is lost", rolledBack, drop},
	{"a pause is lost", paused, drop},
	{"a start is repeated", started, func(facts []events.DeployFact, at int) []events.DeployFact {
		return slices.Insert(facts, at, facts[at])
	}},
	{"a pause is repeated", paused, func(facts []events.DeployFact, at int) []events.DeployFact {
		again := facts[at]
		again.Ordinal++
		return slices.Insert(facts, at+1, again)
	}},
	{"a rollout is invented", started, func(facts []events.DeployFact, at int) []events.DeployFact {
		return edited(facts, at, func(f *events.DeployFact) { f.Rollout.ID += "0" })
	}},
	{"the revision is another one", started, func(facts []events.DeployFact, at int) []events.DeployFact {
		return edited(facts, at, func(f *events.DeployFact) { f.Rollout.Revision++ })
	}},
	{"the image is another one", started, func(facts []events.DeployFact, at int) []events.DeployFact {
		return edited(facts, at, func(f *events.DeployFact) { f.Rollout.Images = []events.Image{{Image: "other"}} })
	}},
	{"the start is late", started, func(facts []events.DeployFact, at int) []events.DeployFact {
		return edited(facts, at, func(f *events.DeployFact) {
			f.Rollout.StartedAt = new(f.Rollout.StartedAt.Add(time.Minute))
		})
	}},
	{"the start is noticed late", started, func(facts []events.DeployFact, at int) []events.DeployFact {
		return edited(facts, at, func(f *events.DeployFact) { f.ObservedAt = f.ObservedAt.Add(time.Minute) })
	}},
	{"the end is noticed early", completed, func(facts []events.DeployFact, at int) []events.DeployFact {
		return edited(facts, at, func(f *events.DeployFact) { f.ObservedAt = f.ObservedAt.Add(-time.Second) })
	}},
	{"a completed rollout is superseded", completed, func(facts []events.DeployFact, at int) []events.DeployFact {
		return edited(facts, at, func(f *events.DeployFact) { f.Fact = superseded })
	}},
	{"a superseded rollout is completed", superseded, func(facts []events.DeployFact, at int) []events.DeployFact {
		return edited(facts, at, func(f *events.DeployFact) { f.Fact = completed })
	}},
	{"an end is unknown without a gap", completed, func(facts []events.DeployFact, at int) []events.DeployFact {
		return edited(facts, at, func(f *events.DeployFact) { f.Fact = unknown })
	}},
	{"a completed rollout has too few pods", completed, func(facts []events.DeployFact, at int) []events.DeployFact {
		return edited(facts, at, func(f *events.DeployFact) {
			f.Counts = new(*f.Counts)
			f.Counts.Updated--
		})
	}},
	{"a gap is lost", unknown, func(facts []events.DeployFact, at int) []events.DeployFact {
		uid := facts[at].Workload.UID
		return slices.DeleteFunc(facts, func(f events.DeployFact) bool { return f.Fact == gap && f.Workload.UID == uid })
	}},
	{"a gap is invented", completed, func(facts []events.DeployFact, at int) []events.DeployFact {
		lie := facts[at]
		lie.Fact, lie.Rollout = gap, nil
		lie.Gap = &events.Gap{Revisions: []int{99}, Since: lie.ObservedAt, Until: lie.ObservedAt}
		return slices.Insert(facts, at, lie)
	}},
	{"two facts change places", completed, func(facts []events.DeployFact, at int) []events.DeployFact {
		facts[at], facts[at-1] = facts[at-1], facts[at]
		return facts
	}},
	{"another start comes first", superseded, func(facts []events.DeployFact, at int) []events.DeployFact {
		facts[at], facts[at+1] = facts[at+1], facts[at]
		return facts
	}},
}

func drop(facts []events.DeployFact, at int) []events.DeployFact {
	return slices.Delete(facts, at, at+1)
}

// edited returns the facts with another one at an index. The facts share nothing with it.
func edited(facts []events.DeployFact, at int, edit func(f *events.DeployFact)) []events.DeployFact {
	if r := facts[at].Rollout; r != nil {
		facts[at].Rollout = new(*r)
	}
	edit(&facts[at])
	return facts
}

func TestLiesAreNoticed(t *testing.T) {
	t.Parallel()
	for _, lie := range lies {
		t.Run(lie.name, func(t *testing.T) {
			t.Parallel()
			applied := 0
			for seed := uint64(0); applied < 3; seed++ {
				require.Less(t, seed, uint64(seeds), "no history has the fact")
				c := outageHistory(t, rollout.Deployment, seed)
				at := slices.IndexFunc(c.facts, func(f events.DeployFact) bool {
					return f.Fact == lie.of && f.Provenance == events.ProvenanceObserved != (lie.of == unknown) &&
						!c.lostNumbers[f.Workload.UID] && f.Sequence > 1
				})
				if at < 0 {
					continue
				}
				require.Empty(t, c.differences())
				c.facts = lie.apply(slices.Clone(c.facts), at)
				for i := range c.facts {
					c.facts[i].Sequence = i + 1
				}
				for _, a := range c.actual {
					a.reported = nil
				}
				require.NotEmpty(t, c.differences(), "seed %d", seed)
				applied++
			}
		})
	}
}
