package pipeline

import (
	"maps"
	"slices"
)

// traversal computes the outcome of jobs from those of the jobs before them. Its work is linear in the number of jobs
// and needs. Of jobs that need each other in a circle, which a [Plan] never has, none ends.
type traversal struct {
	jobs []Status
	// decide returns the outcome of a job. It calls before for that of the jobs before, if it depends on it.
	decide func(i int, before func() outcomes) outcomes

	groups map[string]*group
	stages []*group    // in order
	places map[int]int // index of a stage to its place in stages

	ofJobs   []memo
	ofStages []memo // of all jobs before a stage
}

type group struct {
	memo

	jobs []int
}

// memo is a result that is computed once.
type memo struct {
	begun, done bool
	value       outcomes
}

func (m *memo) get(compute func() outcomes) outcomes {
	switch {
	case m.done:
		return m.value
	case m.begun:
		return waiting // a circle
	}
	m.begun = true
	m.value = compute()
	m.done = true
	return m.value
}

func newTraversal(jobs []Status) *traversal {
	t := &traversal{jobs: jobs, groups: map[string]*group{}, places: map[int]int{}, ofJobs: make([]memo, len(jobs))}
	stages := map[int]*group{}
	for i := range jobs {
		add(t.groups, jobs[i].Group, i)
		add(stages, jobs[i].StageIndex, i)
	}
	for place, stage := range slices.Sorted(maps.Keys(stages)) {
		t.places[stage] = place
		t.stages = append(t.stages, stages[stage])
	}
	t.ofStages = make([]memo, len(t.stages))
	return t
}

func add[K comparable](groups map[K]*group, key K, i int) {
	g, ok := groups[key]
	if !ok {
		g = &group{}
		groups[key] = g
	}
	g.jobs = append(g.jobs, i)
}

func (t *traversal) outcome(i int) outcomes {
	return t.ofJobs[i].get(func() outcomes { return t.decide(i, func() outcomes { return t.before(i) }) })
}

// before returns the outcomes of the jobs that a job waits for. A need without a job counts as skipped, so that the
// pipeline ends.
func (t *traversal) before(i int) outcomes {
	if !t.jobs[i].HasNeeds {
		return t.beforeStage(t.places[t.jobs[i].StageIndex])
	}
	var all outcomes
	for _, need := range t.jobs[i].Needs {
		if g, ok := t.groups[need.Group]; ok {
			all |= g.get(func() outcomes { return t.outcomes(g.jobs) })
		} else {
			all |= skipped
		}
	}
	return all
}

func (t *traversal) beforeStage(place int) outcomes {
	return t.ofStages[place].get(func() outcomes {
		if place == 0 {
			return 0
		}
		return t.beforeStage(place-1) | t.outcomes(t.stages[place-1].jobs)
	})
}

func (t *traversal) outcomes(jobs []int) outcomes {
	var all outcomes
	for _, i := range jobs {
		all |= t.outcome(i)
	}
	return all
}
