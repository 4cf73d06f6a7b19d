package policy

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"lockstep.internal/services/admission/payload"
)

// Input is what a policy knows about a job. The names in JSON are those in CEL.
type Input struct {
	Job     Job     `json:"job"`
	Project Project `json:"project"`
	// User is the one who started the job.
	User User `json:"user"`
	// Groups are those that contain the project, the innermost first.
	Groups []Group `json:"groups"`
	// Variables are the predefined variables.
	Variables map[string]string `json:"variables"`
	// Runners are the existing runners whose scope includes the job.
	Runners []Runner `json:"runners"`
}

// Job is the job.
type Job struct {
	ID         int64    `json:"id"`
	PipelineID int64    `json:"pipeline_id"`
	Name       string   `json:"name"`
	Stage      string   `json:"stage"`
	Tags       []string `json:"tags"`
	Protected  bool     `json:"protected"`
	// Attempt is 1 for the first job, and one more for each retry.
	Attempt int64 `json:"attempt"`
}

// Project is the project of the job.
type Project struct {
	ID   int64  `json:"id"`
	Path string `json:"path"`
}

// User is a user.
type User struct {
	ID    int64  `json:"id"`
	Login string `json:"login"`
	// Groups are those of which the user is a member.
	Groups []Group `json:"groups"`
}

// Group is a group.
type Group struct {
	ID   int64  `json:"id"`
	Path string `json:"path"`
}

// Runner is a runner.
type Runner struct {
	ID          int64    `json:"id"`
	Description string   `json:"description"`
	Type        string   `json:"type"`
	Tags        []string `json:"tags"`
	RunUntagged bool     `json:"run_untagged"`
	Protected   bool     `json:"protected"`
	Paused      bool     `json:"paused"`
}

// DecodeInput reads an input from JSON: an object, or the payload that a controller receives.
func DecodeInput(document []byte) (Input, error) {
	if len(document) > payload.MaxBytes {
		return Input{}, fmt.Errorf("the job has more than %d bytes", payload.MaxBytes)
	}
	if bytes.HasPrefix(bytes.TrimLeft(document, " \t\r\n"), []byte("[")) {
		j, err := payload.DecodeJob(document)
		if err != nil {
			return Input{}, err
		}
		return FromPayload(j), nil
	}
	var in Input
	if err := json.Unmarshal(document, &in, json.RejectUnknownMembers(true)); err != nil {
		return Input{}, fmt.Errorf("the job is not valid: %w", err)
	}
	return in, nil
}

// FromPayload returns what a payload tells. It names no runners, and groups without their ids.
func FromPayload(j payload.Job) Input {
	in := Input{Variables: make(map[string]string, len(j.Variables))}
	for name, value := range j.Variables {
		in.Variables[name] = value.String()
	}
	v := in.Variables
	in.Job = Job{
		ID: j.ID, PipelineID: id(v["CI_PIPELINE_ID"]), Name: v["CI_JOB_NAME"], Stage: v["CI_JOB_STAGE"], Tags: j.Tags,
		Protected: v["CI_COMMIT_REF_PROTECTED"] == "true", Attempt: 1,
	}
	in.Project = Project{ID: id(v["CI_PROJECT_ID"]), Path: v["CI_PROJECT_PATH"]}
	in.User = User{ID: id(v["GITLAB_USER_ID"]), Login: v["GITLAB_USER_LOGIN"]}
	for path := v["CI_PROJECT_NAMESPACE"]; path != ""; {
		in.Groups = append(in.Groups, Group{Path: path})
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
	}
	return in
}

// id returns the id in a variable; 0 if there is none.
func id(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
