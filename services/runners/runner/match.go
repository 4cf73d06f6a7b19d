package runner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"lockstep.internal/services/runners/job"
)

// Place is the position of a job's project.
type Place struct {
	// Groups are those that contain the project, the innermost first.
	Groups []int64
	// Organization of the project.
	Organization int64
}

// Rule is a rule that a runner must follow to take a job.
type Rule string

// The rules, in the order in which [Runner.Explain] returns them.
const (
	// RuleScope: the type of the runner includes the project of the job.
	RuleScope Rule = "scope"
	// RuleTags: the runner has all tags of the job.
	RuleTags Rule = "tags"
	// RuleUntagged: a job without tags needs a runner that takes such jobs.
	RuleUntagged Rule = "untagged"
	// RuleProtected: a protected runner takes protected jobs only.
	RuleProtected Rule = "protected"
	// RuleAdmission: admission accepts the runner for the job.
	RuleAdmission Rule = "admission"
	// RulePaused: a paused runner takes no jobs.
	RulePaused Rule = "paused"
	// RuleExpired: a runner with an expired token takes no jobs.
	RuleExpired Rule = "token_expired"
)

// Passing reports whether a runner breaks the rule for a while only: a job must not fail because of it.
func (r Rule) Passing() bool { return r == RulePaused || r == RuleExpired }

// Reason is a rule that keeps a runner from a job.
type Reason struct {
	Rule     Rule
	RunnerID int64
	// Detail ends the sentence of [Reason.String].
	Detail string
}

// String returns a sentence without a period, such as "runner 12 lacks the tag gpu".
func (r Reason) String() string { return fmt.Sprintf("runner %d %s", r.RunnerID, r.Detail) }

// Takes reports whether the runner may take the job now. It allocates nothing. Whether the job is pending is the
// caller's matter.
func (r *Runner) Takes(j *job.Job, place Place, now time.Time) bool {
	return j.Admission.Allows(r.ID) && r.TakesClass(j.Tags, j.Protected, now) && r.TakesProject(j.ProjectID, place)
}

// TakesClass reports whether the runner may take jobs with these tags and this protection now, if they are of a project
// that it takes jobs of.
func (r *Runner) TakesClass(tags []string, protected bool, now time.Time) bool {
	return !r.Paused && (!r.Protected || protected) && r.hasTags(tags) && !r.Expired(now)
}

// TakesProject reports whether the project is in the scope of the runner. A runner of projects also stays in its
// organization, should a project move to another one.
func (r *Runner) TakesProject(projectID int64, place Place) bool {
	switch r.Type {
	case InstanceType:
		return true
	case GroupType:
		return slices.Contains(place.Groups, r.GroupID)
	case ProjectType:
		return place.Organization == r.OrganizationID && slices.Contains(r.ProjectIDs, projectID)
	default:
		return false
	}
}

// Explain returns every rule that keeps the runner from the job; none if it takes it.
func (r *Runner) Explain(j *job.Job, place Place, now time.Time) []Reason {
	var reasons []Reason
	add := func(rule Rule, format string, args ...any) {
		reasons = append(reasons, Reason{Rule: rule, RunnerID: r.ID, Detail: fmt.Sprintf(format, args...)})
	}
	if !r.TakesProject(j.ProjectID, place) {
		add(RuleScope, "%s", r.scope(j))
	}
	if missing := r.missingTags(j); len(missing) == 1 {
		add(RuleTags, "lacks the tag %s", missing[0])
	} else if len(missing) > 1 {
		add(RuleTags, "lacks the tags %s", strings.Join(missing, ", "))
	}
	if len(j.Tags) == 0 && !r.RunUntagged {
		add(RuleUntagged, "takes only jobs with tags, and the job has none")
	}
	if r.Protected && !j.Protected {
		add(RuleProtected, "takes only protected jobs, and the job is not protected")
	}
	if !j.Admission.Allows(r.ID) {
		add(RuleAdmission, "is not one of those that admission accepts for the job")
	}
	if r.Paused {
		add(RulePaused, "is paused")
	}
	if r.Expired(now) {
		add(RuleExpired, "has a token that expired at %s", r.TokenExpiresAt.Format(time.RFC3339))
	}
	return reasons
}

// scope describes why the job is not in the scope of the runner.
func (r *Runner) scope(j *job.Job) string {
	switch {
	case r.Type == GroupType:
		return fmt.Sprintf("takes jobs of group %d, which does not contain project %d", r.GroupID, j.ProjectID)
	case r.Type != ProjectType:
		return fmt.Sprintf("has the unknown type %q", r.Type)
	case slices.Contains(r.ProjectIDs, j.ProjectID):
		return fmt.Sprintf("takes jobs of organization %d, which does not contain project %d", r.OrganizationID, j.ProjectID)
	default:
		return fmt.Sprintf("is not linked to project %d", j.ProjectID)
	}
}

func (r *Runner) hasTags(tags []string) bool {
	if len(tags) == 0 {
		return r.RunUntagged
	}
	for _, tag := range tags {
		if !slices.Contains(r.Tags, tag) {
			return false
		}
	}
	return true
}

func (r *Runner) missingTags(j *job.Job) []string {
	var missing []string
	for _, tag := range j.Tags {
		if !slices.Contains(r.Tags, tag) {
			missing = append(missing, tag)
		}
	}
	return missing
}
