package pipeline

import (
	"fmt"
	"strings"

	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/services/runners/cifile"
)

// order returns the groups by stage, each after those that it needs. It reports needs that do not fit together in the
// file, whatever its rules add.
func (p *planner) order() []*plannedGroup {
	byStage := make([][]*plannedGroup, len(p.file.Stages))
	for i := range p.file.Jobs {
		g := p.groups[p.file.Jobs[i].Name]
		byStage[g.stageIndex] = append(byStage[g.stageIndex], g)
	}
	o := &ordering{planner: p, visited: map[*plannedGroup]bool{}, places: map[*plannedGroup]int{}}
	for _, groups := range byStage {
		for _, g := range groups {
			o.visit(g)
		}
	}
	return o.out
}

// ordering is a depth-first search along needs.
type ordering struct {
	*planner

	out     []*plannedGroup
	visited map[*plannedGroup]bool
	path    []*plannedGroup
	places  map[*plannedGroup]int // in path
}

func (o *ordering) visit(g *plannedGroup) {
	if o.visited[g] {
		return
	}
	o.visited[g] = true
	o.places[g] = len(o.path)
	o.path = append(o.path, g)
	for _, need := range g.Needs {
		needed, ok := o.groups[need.Job]
		switch {
		case !ok:
			o.unknownNeed(g, need)
		case needed.stageIndex > g.stageIndex:
			o.addf(need.Position, "the job %q needs %q of the later stage %q: move one of them to another stage",
				g.Name, need.Job, needed.Stage)
		case needed.stageIndex == g.stageIndex:
			if place, ok := o.places[needed]; ok {
				o.addf(need.Position, "needs run in a circle: %s", circle(o.path[place:]))
				continue
			}
			o.visit(needed)
		}
	}
	o.path = o.path[:len(o.path)-1]
	delete(o.places, g)
	o.out = append(o.out, g)
}

// unknownNeed reports a need of no job of the file, unless it is optional. A copy of a parallel job cannot be needed
// alone.
func (o *ordering) unknownNeed(g *plannedGroup, need cifile.Need) {
	if parallel, ok := o.names[need.Job]; ok {
		o.addf(need.Position, "the job %q needs %q, one copy of a parallel job: write %q to need all of its copies",
			g.Name, need.Job, parallel)
		return
	}
	if !need.Optional {
		o.addf(need.Position, "the job %q needs %q, which is not in the file", g.Name, need.Job)
	}
}

// circle prints as the names of jobs that need each other.
type circle []*plannedGroup

func (c circle) String() string {
	const shown = 20
	var b strings.Builder
	for _, g := range c[:min(len(c), shown)] {
		fmt.Fprintf(&b, "%q → ", g.Name)
	}
	if len(c) > shown {
		b.WriteString("… → ")
	}
	fmt.Fprintf(&b, "%q", c[0].Name)
	return b.String()
}

// plan adds the jobs of the groups with their needs. Needs of jobs that are not added are left out if they are
// optional, and reported otherwise.
func (p *planner) plan(order []*plannedGroup) {
	for _, g := range order {
		if len(g.jobs) == 0 {
			continue
		}
		for _, need := range g.Needs {
			needed, ok := p.groups[need.Job]
			switch {
			case !ok:
			case len(needed.jobs) > 0:
				g.needs = append(g.needs, Need{Group: need.Job, Artifacts: need.Artifacts})
			case !need.Optional:
				p.addf(need.Position, "the job %q needs %q, which is not added: %s; if that is intended, write optional: true",
					g.Name, need.Job, strings.Join(needed.excluded, "; "))
			}
		}
		for _, j := range g.jobs {
			j.Needs = g.needs
			p.jobs = append(p.jobs, j)
		}
	}
}

// checkNotEmpty reports a pipeline without jobs, and one whose jobs are all in .pre and .post.
func (p *planner) checkNotEmpty() {
	if len(p.jobs) == 0 {
		for i := range p.file.Jobs {
			g := p.groups[p.file.Jobs[i].Name]
			for _, reason := range g.excluded {
				p.addf(g.Position, "the pipeline has no jobs: the job %q is not added, %s", g.Name, reason)
			}
		}
		return
	}
	for i := range p.jobs {
		if stage := p.jobs[i].Stage; stage != cifile.StagePre && stage != cifile.StagePost {
			return
		}
	}
	p.addf(p.groups[p.jobs[0].Group].Position,
		"the pipeline has jobs of the stages %s and %s only: add a job of another stage", cifile.StagePre, cifile.StagePost)
}

// checkArtifacts limits the jobs whose artifacts a job downloads. It leaves none of them out: the job would work on
// other files than its author expects.
func (p *planner) checkArtifacts() {
	before := make([]int, len(p.file.Stages)+1) // jobs with artifacts before a stage
	for i := range p.jobs {
		if p.jobs[i].HasArtifacts {
			before[p.jobs[i].StageIndex+1]++
		}
	}
	for i := range p.file.Stages {
		before[i+1] += before[i]
	}
	for i := range p.file.Jobs {
		g := p.groups[p.file.Jobs[i].Name]
		if len(g.jobs) == 0 {
			continue
		}
		count := before[g.stageIndex]
		if g.HasNeeds {
			count = 0
			for _, need := range g.needs {
				if needed := p.groups[need.Group]; need.Artifacts && needed.Artifacts != nil {
					count += len(needed.jobs)
				}
			}
		}
		if count > jobtoken.MaxArtifactJobs {
			p.addf(g.Position, "the job %q downloads the artifacts of %d jobs: at most %d are allowed; "+
				"name the jobs in needs, with artifacts: false where they are not used", g.Name, count, jobtoken.MaxArtifactJobs)
		}
	}
}
