package pipeline

import (
	"cmp"
	"slices"

	"lockstep.internal/services/runners/job"
)

// Node is the place of a job in the graph of its pipeline. All attempts of a job share it.
type Node struct {
	// Name of the job, unique in the pipeline among the jobs that were not retried.
	Name string
	// Group is the name of the job in the file. The copies of a parallel job share it.
	Group string
	Stage string
	// StageIndex is the position of the stage. Stages run in ascending order.
	StageIndex int
	// When the job runs, given how the jobs before it ended. Empty means on_success.
	When job.When
	// HasNeeds: the job waits for its Needs, none of which is in a later stage. Without them it begins at once.
	// Otherwise it waits for all jobs of earlier stages.
	HasNeeds bool
	Needs    []Need
	// HasArtifacts: the definition has artifacts.
	HasArtifacts bool
}

// Need is a group of jobs that must end first: all copies of a parallel job, or the only one.
type Need struct {
	Group string `json:"group"`
	// Artifacts of the group are downloaded.
	Artifacts bool `json:"artifacts,omitempty"`
}

// Status is the latest attempt of a job.
type Status struct {
	Node

	State job.State
	// FailureAllowed: the pipeline continues although the job failed or was canceled.
	FailureAllowed bool
	// Delayed jobs do not begin yet: they wait for [RetryDelay].
	Delayed bool
}

// NewStatus returns the status of a job. The caller sets Delayed.
func NewStatus(j job.Job, node Node) Status {
	return Status{
		Node: node, State: j.State,
		FailureAllowed: j.FailureAllowed() || j.State == job.Canceled && j.Policy.AllowFailure,
	}
}

// ArtifactJobs returns the names of the jobs whose artifacts the named job downloads: those of its needs, or without
// needs those of all earlier stages. The order is that of the stages: of two files with one path, the later one counts.
// Jobs that declare no artifacts are left out. The others may have none all the same, because they failed or were
// skipped. [NewPlan] limits the number to jobtoken.MaxArtifactJobs.
func ArtifactJobs(jobs []Status, name string) []string {
	own := slices.IndexFunc(jobs, func(s Status) bool { return s.Name == name })
	if own < 0 {
		return nil
	}
	var found []Node
	for i := range jobs {
		if jobs[i].HasArtifacts && jobs[own].downloads(jobs[i].Node) {
			found = append(found, jobs[i].Node)
		}
	}
	slices.SortStableFunc(found, func(a, b Node) int { return cmp.Compare(a.StageIndex, b.StageIndex) })
	names := make([]string, len(found))
	for i, n := range found {
		names[i] = n.Name
	}
	return names
}

// WaitsFor returns the names of the jobs that a created job waits for: those before it that have not ended.
func WaitsFor(jobs []Status, name string) []string {
	own := slices.IndexFunc(jobs, func(s Status) bool { return s.Name == name })
	if own < 0 || jobs[own].State != job.Created {
		return nil
	}
	var names []string
	for i := range jobs {
		if !jobs[i].State.Final() && jobs[own].follows(jobs[i].Node) {
			names = append(names, jobs[i].Name)
		}
	}
	return names
}

func (n *Node) follows(other Node) bool {
	if !n.HasNeeds {
		return other.StageIndex < n.StageIndex
	}
	return slices.ContainsFunc(n.Needs, func(need Need) bool { return need.Group == other.Group })
}

func (n *Node) downloads(other Node) bool {
	if !n.HasNeeds {
		return other.StageIndex < n.StageIndex
	}
	return slices.Contains(n.Needs, Need{Group: other.Group, Artifacts: true})
}
