package job

import "time"

// Definition is what a runner needs to execute a job. It has secret values: it is stored in PostgreSQL only, and no
// event has it. All attempts of a job share it.
type Definition struct {
	Script      []string   `json:"script"`
	AfterScript []string   `json:"after_script,omitempty"`
	Variables   []Variable `json:"variables,omitempty"`
	// Overridden are the predefined variables that others replace.
	Overridden []Variable `json:"overridden,omitempty"`
	Artifacts  *Artifacts `json:"artifacts,omitempty"`
	// ArtifactJobs are the names of the jobs whose artifacts are downloaded first, in this order.
	ArtifactJobs []string `json:"artifact_jobs,omitempty"`
}

// Variable is an environment variable. It is stored as JSON, and never logged.
type Variable struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	// Masked values are replaced in the trace.
	Masked bool `json:"masked,omitempty"`
	// File variables hold the path of a file with the value.
	File bool `json:"file,omitempty"`
	// Raw values are not expanded.
	Raw bool `json:"raw,omitempty"`
	// Predefined variables have a value that the service sets.
	Predefined bool `json:"predefined,omitempty"`
}

// When artifacts are uploaded.
type When string

// The values of When.
const (
	OnSuccess When = "on_success"
	OnFailure When = "on_failure"
	Always    When = "always"
)

// Artifacts are the files that the runner uploads.
type Artifacts struct {
	Name      string   `json:"name,omitempty"`
	Paths     []string `json:"paths,omitempty"`
	Exclude   []string `json:"exclude,omitempty"`
	Untracked bool     `json:"untracked,omitempty"`
	When      When     `json:"when"`
	// ExpireIn is a duration in words, or never; empty for the default of the service.
	ExpireIn string `json:"expire_in,omitempty"`
}

// MaskedValues returns the values that the trace must not show, in the order of the variables.
func (d Definition) MaskedValues() []string {
	var values []string
	for _, v := range d.Variables {
		if v.Masked {
			values = append(values, v.Value)
		}
	}
	return values
}

// Predefined returns the predefined variables by name, with the values that the service set, whoever replaces them.
func (d Definition) Predefined() map[string]string {
	values := map[string]string{}
	for _, v := range d.Variables {
		if v.Predefined {
			values[v.Key] = v.Value
		}
	}
	for _, v := range d.Overridden {
		values[v.Key] = v.Value
	}
	return values
}

// TimeoutOn returns the timeout of a job on a runner: the shorter one. limit 0 means that the runner has none.
func TimeoutOn(timeout, limit time.Duration) time.Duration {
	if limit > 0 && limit < timeout {
		return limit
	}
	return timeout
}
