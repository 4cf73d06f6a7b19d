package chain

import (
	"fmt"
	"slices"
	"strings"

	"lockstep.internal/services/admission/payload"
)

// Job is what the chain knows about a job.
type Job struct {
	ID int64 `json:"id"`
	// Tags as the job was defined.
	Tags []string `json:"tags,omitempty"`
	// Variables are the predefined variables without masked values.
	Variables map[string]string `json:"variables,omitempty"`
	// Runners are the existing runners whose scope includes the job; nil if they are not known.
	Runners []Runner `json:"runners"`
}

// Runner is what the chain knows about a runner.
type Runner struct {
	ID          int64    `json:"id"`
	Tags        []string `json:"tags,omitempty"`
	RunUntagged bool     `json:"run_untagged,omitempty"`
}

// Definition is the part of a job that controllers change.
type Definition struct {
	// Tags that a runner must have, sorted.
	Tags []string `json:"tags,omitempty"`
	// AcceptedRunners are the only runners that may take the job; empty for no restriction. Sorted.
	AcceptedRunners []int64 `json:"accepted_runners,omitempty"`
	// RejectedRunners may not take the job. Sorted.
	RejectedRunners []int64 `json:"rejected_runners,omitempty"`
}

// Allows reports whether a runner may take a job with this definition.
func (d Definition) Allows(r Runner) bool { return d.Obstacle(r) == "" }

// Obstacle returns what keeps a runner from a job with this definition; nothing if it may take the job.
func (d Definition) Obstacle(r Runner) string {
	switch {
	case slices.Contains(d.RejectedRunners, r.ID):
		return "admission rejects the runner"
	case len(d.AcceptedRunners) > 0 && !slices.Contains(d.AcceptedRunners, r.ID):
		return "admission accepts other runners only"
	case len(d.Tags) == 0 && !r.RunUntagged:
		return "the runner takes only jobs with tags, and the job has none"
	}
	if missing := without(d.Tags, r.Tags); len(missing) > 0 {
		return "the runner lacks the tags " + strings.Join(missing, ", ")
	}
	return ""
}

func (d Definition) equal(other Definition) bool {
	return slices.Equal(d.Tags, other.Tags) && slices.Equal(d.AcceptedRunners, other.AcceptedRunners) &&
		slices.Equal(d.RejectedRunners, other.RejectedRunners)
}

// Diff is how a decision changes a definition.
type Diff struct {
	AddedTags   []string `json:"added_tags,omitempty"`
	RemovedTags []string `json:"removed_tags,omitempty"`
	// AcceptedRunners and RejectedRunners are those of the answer.
	AcceptedRunners []int64 `json:"accepted_runners,omitempty"`
	RejectedRunners []int64 `json:"rejected_runners,omitempty"`
}

const noCommonRunner = "no runner is accepted by all controllers"

// apply returns the definition after an accepting answer, and how it differs. rejection is a reason to reject the job.
func (d Definition) apply(a payload.Answer) (changed Definition, diff Diff, rejection string, err error) {
	diff = Diff{
		AcceptedRunners: sorted(a.AcceptRunners), RejectedRunners: sorted(a.RejectRunners),
		AddedTags:   sorted(without(a.AddTags, d.Tags)),
		RemovedTags: sorted(without(d.Tags, without(d.Tags, a.RemoveTags))),
	}
	changed = Definition{
		Tags:            sorted(slices.Concat(without(d.Tags, a.RemoveTags), a.AddTags)),
		AcceptedRunners: d.AcceptedRunners,
		RejectedRunners: sorted(slices.Concat(d.RejectedRunners, a.RejectRunners)),
	}
	if len(changed.Tags) > payload.MaxTags {
		return d, Diff{}, "", fmt.Errorf("the job would have %d tags: at most %d are allowed", len(changed.Tags),
			payload.MaxTags)
	}
	switch {
	case len(diff.AcceptedRunners) == 0:
	case len(d.AcceptedRunners) == 0:
		changed.AcceptedRunners = diff.AcceptedRunners
	default:
		changed.AcceptedRunners = slices.DeleteFunc(slices.Clone(d.AcceptedRunners),
			func(id int64) bool { return !slices.Contains(diff.AcceptedRunners, id) })
		if len(changed.AcceptedRunners) == 0 {
			return d, diff, noCommonRunner, nil
		}
	}
	return changed, diff, "", nil
}

func without(list, removed []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(item string) bool { return slices.Contains(removed, item) })
}

// sorted returns the distinct items in order; nil if there are none.
func sorted[T string | int64](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}
