package pipeline

import (
	"fmt"

	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
)

// decision is what the rules decide about a copy of a job.
type decision struct {
	excluded     string // why the job is not added; empty if it is
	when         cifile.When
	allowFailure *bool
	variables    []job.Variable
}

// maxSteps bounds the evaluation of all rules of a plan to about a second.
const maxSteps = 100_000_000

// decide evaluates the rules of a job: the first one without a condition, or with one that is true, counts. It returns
// false if the rules of the plan take too long.
func (p *planner) decide(j *cifile.Job, list []job.Variable) (decision, bool) {
	if !j.HasRules {
		return decision{when: j.When}, true
	}
	if len(j.Rules) == 0 {
		return decision{excluded: "its list of rules is empty"}, true
	}
	known := values(list)
	for i := range j.Rules {
		rule := &j.Rules[i]
		if rule.If != nil {
			if p.steps += rule.If.Cost(known); p.steps > maxSteps {
				return decision{}, false
			}
			if !rule.If.Evaluate(known) {
				continue
			}
		}
		if rule.When == cifile.Never {
			return decision{excluded: fmt.Sprintf("its rule %d has when: never", i+1)}, true
		}
		return decision{when: rule.When, allowFailure: rule.AllowFailure, variables: ofFile(rule.Variables)}, true
	}
	return decision{excluded: "none of its rules matches"}, true
}

// policy returns how failures of a job are treated. allow_failure of a rule replaces that of the job.
func policy(j *cifile.Job, rule *bool) job.Policy {
	out := job.Policy{
		Retries:              j.Retry.Max,
		AllowFailure:         j.AllowFailure.Always,
		AllowExitCodes:       j.AllowFailure.ExitCodes,
		AllowDeniedAdmission: j.AllowFailure.OnDeniedAdmission,
	}
	for _, reason := range j.Retry.When {
		out.RetryWhen = append(out.RetryWhen, job.FailureReason(reason))
	}
	if rule != nil {
		out.AllowFailure, out.AllowExitCodes, out.AllowDeniedAdmission = *rule, nil, false
	}
	return out
}
