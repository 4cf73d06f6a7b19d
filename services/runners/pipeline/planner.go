package pipeline

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
)

// planner builds a plan and collects what is wrong.
type planner struct {
	file     *cifile.File
	in       Input
	problems []cifile.Problem

	// Variables.
	predefined, identity, ofFile []job.Variable

	stages map[string]int
	groups map[string]*plannedGroup // by name in the file
	names  map[string]string        // of all copies, to their groups
	total  int                      // bytes of all definitions
	steps  int64                    // of all rules

	jobs []Job
}

// plannedGroup is a job of the file with the copies that its rules add.
type plannedGroup struct {
	*cifile.Job

	stageIndex int
	jobs       []Job
	needs      []Need   // of each copy
	excluded   []string // reasons for copies that are not added, each once
}

func newPlanner(file *cifile.File, in Input) *planner {
	p := &planner{
		file: file, in: in,
		stages: map[string]int{}, groups: map[string]*plannedGroup{}, names: map[string]string{},
	}
	for i, stage := range file.Stages {
		p.stages[stage] = i
	}
	p.predefined, p.ofFile = Predefined(in, file.Name), ofFile(file.Variables)
	if in.PipelineID != 0 {
		var identity variables
		identity.add("CI_PIPELINE_ID", strconv.FormatInt(in.PipelineID, 10))
		p.identity = identity
	}
	return p
}

// maxProblems bounds the memory for problems; nobody reads more.
const maxProblems = 1000

func (p *planner) addf(at cifile.Position, format string, arguments ...any) {
	if len(p.problems) < maxProblems {
		p.problems = append(p.problems, cifile.Problem{Position: at, Message: fmt.Sprintf(format, arguments...)})
	}
}

// expand adds the copies of all jobs that their rules add. It returns false after a problem that makes others
// meaningless.
func (p *planner) expand() bool {
	count := 0
	for i := range p.file.Jobs {
		if count += p.file.Jobs[i].Parallel.Copies(); count > p.in.Limits.Jobs {
			p.addf(p.file.Jobs[i].Position, "the pipeline has more than %d jobs", p.in.Limits.Jobs)
			return false
		}
	}
	for i := range p.file.Jobs {
		j := &p.file.Jobs[i]
		stage, ok := p.stages[j.Stage]
		if !ok {
			p.addf(j.Position, "the stage %q of the job %q is not in stages", j.Stage, j.Name)
			return false
		}
		if _, ok := p.groups[j.Name]; ok {
			p.addf(j.Position, "the file has two jobs with the name %q", j.Name)
			return false
		}
		g := &plannedGroup{Job: j, stageIndex: stage}
		p.groups[j.Name] = g
		if !p.expandGroup(g) {
			return false
		}
	}
	return true
}

// expandGroup adds the copies of a job. It returns false after a problem that ends the work, so that it is bounded.
func (p *planner) expandGroup(g *plannedGroup) bool {
	shared := p.shared(g)
	ofJob := ofFile(g.Variables)
	all := copies(g.Job)
	if len(all) == 0 {
		g.exclude("its matrix has no values")
	}
	for _, c := range all {
		p.checkName(g.Job, c.name)
		if !p.addCopy(g, shared, c, merge(predefinedOf(g.Job, c), p.ofFile, ofJob, c.matrix)) {
			return false
		}
	}
	return true
}

// addCopy adds a copy if the rules of its job add it.
func (p *planner) addCopy(g *plannedGroup, added Job, c jobCopy, ofCopy []job.Variable) bool {
	known := merge(p.predefined, ofCopy, p.in.ProjectVariables, p.in.Variables)
	if !p.grow(g.Job, definitionSize(g.Job)+size(known)) {
		return false
	}
	decided, ok := p.decide(g.Job, known)
	if !ok {
		p.addf(g.Position, "the rules of the jobs take too long to evaluate: use shorter patterns or fewer jobs")
		return false
	}
	if decided.excluded != "" {
		g.exclude(decided.excluded)
		return true
	}
	list := merge(p.predefined, p.identity, ofCopy, decided.variables, p.in.ProjectVariables, p.in.Variables)
	if !expand(list, p.in.Limits.Total) {
		p.addf(g.Position, "the variables of the job %q have more than %d bytes after their references were replaced",
			g.Name, p.in.Limits.Total)
		return false
	}
	if !p.grow(g.Job, size(list)-size(known)) {
		return false
	}
	added.Name, added.When, added.Policy = c.name, job.When(decided.when), policy(g.Job, decided.allowFailure)
	added.Definition.Variables = list
	added.Definition.Overridden = overridden(list, slices.Concat(p.predefined, p.identity, predefinedOf(g.Job, c)))
	g.jobs = append(g.jobs, added)
	return true
}

// grow counts bytes of definitions. It returns false after reporting that they are too many.
func (p *planner) grow(j *cifile.Job, bytes int) bool {
	p.total += bytes
	if p.total > p.in.Limits.Total {
		p.addf(j.Position, "the definitions of the jobs, with the variables of each, have more than %d bytes: "+
			"use fewer jobs, or shorter scripts and variables", p.in.Limits.Total)
		return false
	}
	return true
}

// shared returns what all copies of a job have.
func (p *planner) shared(g *plannedGroup) Job {
	j := g.Job
	timeout := cmp.Or(j.Timeout, p.in.DefaultTimeout)
	if timeout > p.in.MaximumTimeout {
		p.addf(j.Position, "the job %q has a timeout of %s: at most %s is allowed", j.Name, timeout, p.in.MaximumTimeout)
	}
	return Job{
		Node: Node{
			Group: j.Name, Stage: j.Stage, StageIndex: g.stageIndex, HasNeeds: j.HasNeeds,
			HasArtifacts: j.Artifacts != nil,
		},
		Definition: job.Definition{
			Script: slices.Concat(j.BeforeScript, j.Script), AfterScript: j.AfterScript, Artifacts: artifacts(j.Artifacts),
		},
		Tags: j.Tags, Timeout: timeout, Protected: p.in.Ref.Protected,
	}
}

func (g *plannedGroup) exclude(reason string) {
	if !slices.Contains(g.excluded, reason) {
		g.excluded = append(g.excluded, reason)
	}
}

const maxName = 255 // bytes

// checkName checks the name of a copy, which has the values of a matrix.
func (p *planner) checkName(j *cifile.Job, name string) {
	if len(name) > maxName {
		p.addf(j.Position, "the job %q has a copy whose name has more than %d bytes: use shorter values in the matrix",
			j.Name, maxName)
		return
	}
	if strings.ContainsFunc(name, unicode.IsControl) {
		p.addf(j.Position, "the copy %q of the job %q has a control character: use other values in the matrix", name, j.Name)
	}
	switch other, ok := p.names[name]; {
	case !ok:
		p.names[name] = j.Name
	case other == j.Name:
		p.addf(j.Position, "the matrix of the job %q makes %q twice", j.Name, name)
	default:
		p.addf(j.Position, "the jobs %q and %q both make a job with the name %q: rename one", other, j.Name, name)
	}
}

func artifacts(a *cifile.Artifacts) *job.Artifacts {
	if a == nil {
		return nil
	}
	return &job.Artifacts{
		Name: a.Name, Paths: a.Paths, Exclude: a.Exclude, Untracked: a.Untracked, When: job.When(a.When),
		ExpireIn: a.ExpireIn,
	}
}

// definitionSize returns the bytes of what each copy of a job stores, without the variables that decide evaluates.
func definitionSize(j *cifile.Job) int {
	n := len(j.Name) + len(j.Stage)
	lists := [][]string{j.BeforeScript, j.Script, j.AfterScript, j.Tags}
	if j.Artifacts != nil {
		n += len(j.Artifacts.Name)
		lists = append(lists, j.Artifacts.Paths, j.Artifacts.Exclude)
	}
	for _, list := range lists {
		for _, text := range list {
			n += len(text)
		}
	}
	for _, need := range j.Needs {
		n += len(need.Job)
	}
	most := 0
	for i := range j.Rules {
		most = max(most, size(ofFile(j.Rules[i].Variables)))
	}
	return n + most
}
