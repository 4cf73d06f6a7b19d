package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// rules are the content of the file RULES. An absent field decides nothing.
type rules struct {
	// Projects are the ids of the only projects whose jobs may run.
	Projects []int64 `json:"projects"`
	// Zones are tags by the id of a user. The jobs of a user run in the zone of the user.
	Zones map[string]string `json:"zones"`
	// Runners are the ids of users by the id of a runner. A runner takes only jobs of its users.
	Runners map[string][]int64 `json:"runners"`
}

// job is what Lockstep sends. See schemas/admission/request.v1.schema.json.
type job struct {
	ID        int64          `json:"id"`
	Variables map[string]any `json:"variables"`
	Tags      []string       `json:"tags"`
}

// number returns a variable that is an id: a number or a text. It returns 0 if there is none.
func (j job) number(name string) int64 {
	id, err := strconv.ParseInt(fmt.Sprint(j.Variables[name]), 10, 64)
	if err != nil {
		return 0
	}
	return id
}

// answer is what Lockstep expects. See schemas/admission/answer.v1.schema.json.
type answer struct {
	ID        int64    `json:"id"`
	Admission string   `json:"admission"`
	Tags      *tags    `json:"tags,omitempty"`
	Runners   *runners `json:"runners,omitempty"`
	Reason    string   `json:"reason,omitempty"`
}

type tags struct {
	Add    []string `json:"add"`
	Remove []string `json:"remove"`
}

type runners struct {
	AcceptedIDs []string `json:"accepted_ids"`
	RejectedIDs []string `json:"rejected_ids"`
}

// decide is idempotent: Lockstep may send a job more than once.
func (r rules) decide(j job) answer {
	project, user := j.number("CI_PROJECT_ID"), j.number("GITLAB_USER_ID")
	rejected := func(format string, arguments ...any) answer {
		return answer{ID: j.ID, Admission: "rejected", Reason: fmt.Sprintf(format, arguments...)}
	}
	if r.Projects != nil && !slices.Contains(r.Projects, project) {
		return rejected("project %d is not on the list", project)
	}
	out := answer{ID: j.ID, Admission: "accepted"}
	var reasons []string
	if zone := r.Zones[strconv.FormatInt(user, 10)]; zone != "" {
		out.Tags = &tags{Add: []string{zone}, Remove: []string{}}
		for _, tag := range j.Tags {
			if tag != zone && slices.Contains(slices.Collect(maps.Values(r.Zones)), tag) {
				out.Tags.Remove = append(out.Tags.Remove, tag)
			}
		}
		reasons = append(reasons, fmt.Sprintf("user %d belongs to %s", user, zone))
	}
	if r.Runners != nil {
		// An answer without accepted runners would mean all runners.
		out.Runners = &runners{AcceptedIDs: []string{}, RejectedIDs: []string{}}
		for _, id := range slices.Sorted(maps.Keys(r.Runners)) {
			if slices.Contains(r.Runners[id], user) {
				out.Runners.AcceptedIDs = append(out.Runners.AcceptedIDs, id)
			} else {
				out.Runners.RejectedIDs = append(out.Runners.RejectedIDs, id)
			}
		}
		if len(out.Runners.AcceptedIDs) == 0 {
			return rejected("user %d may use no runner", user)
		}
		accepted := strings.Join(out.Runners.AcceptedIDs, ", ")
		reasons = append(reasons, fmt.Sprintf("user %d may use runners %s", user, accepted))
	}
	out.Reason = strings.Join(reasons, "; ")
	return out
}
