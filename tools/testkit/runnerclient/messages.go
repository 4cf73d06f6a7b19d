package runnerclient

import "time"

// Runner answers a request to register or verify.
type Runner struct {
	ID             int64      `json:"id"`
	Token          string     `json:"token"`
	TokenExpiresAt *time.Time `json:"token_expires_at"`
}

// Registration creates a runner with a registration token.
type Registration struct {
	Token          string `json:"token"`
	Description    string `json:"description,omitempty"`
	TagList        string `json:"tag_list,omitempty"`
	RunUntagged    bool   `json:"run_untagged"`
	Locked         bool   `json:"locked"`
	Paused         bool   `json:"paused"`
	AccessLevel    string `json:"access_level,omitempty"`
	MaximumTimeout int64  `json:"maximum_timeout,omitempty"`
}

// Job is a job that the server gave to the runner.
type Job struct {
	ID      int64  `json:"id"`
	Token   string `json:"token"`
	JobInfo struct {
		Name      string `json:"name"`
		Stage     string `json:"stage"`
		ProjectID int64  `json:"project_id"`
	} `json:"job_info"`
	GitInfo *struct {
		RepoURL string `json:"repo_url"`
	} `json:"git_info"`
	RunnerInfo struct {
		Timeout int64 `json:"timeout"`
	} `json:"runner_info"`
	Variables    []Variable   `json:"variables"`
	Steps        []Step       `json:"steps"`
	Artifacts    []Artifact   `json:"artifacts"`
	Dependencies []Dependency `json:"dependencies"`
	Features     struct {
		FailureReasons []string `json:"failure_reasons"`
	} `json:"features"`
}

// Variable is an environment variable of the job.
type Variable struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Public bool   `json:"public"`
	Masked bool   `json:"masked"`
	File   bool   `json:"file"`
	Raw    bool   `json:"raw"`
}

// Step is a script of the job.
type Step struct {
	Name    string   `json:"name"`
	Script  []string `json:"script"`
	Timeout int64    `json:"timeout"`
	When    string   `json:"when"`
}

// Artifact is a set of files to upload.
type Artifact struct {
	Name     string   `json:"name"`
	Paths    []string `json:"paths"`
	When     string   `json:"when"`
	Type     string   `json:"artifact_type"`
	Format   string   `json:"artifact_format"`
	ExpireIn string   `json:"expire_in"`
}

// Dependency is a job whose artifacts are downloaded first.
type Dependency struct {
	ID            int64  `json:"id"`
	Token         string `json:"token"`
	Name          string `json:"name"`
	ArtifactsFile struct {
		Filename string `json:"filename"`
		Size     int64  `json:"size"`
	} `json:"artifacts_file"`
}

// Update reports the state of a job.
type Update struct {
	// State is running, success or failed.
	State         string
	FailureReason string
	ExitCode      int
	// Trace is the whole trace, for its checksum and size.
	Trace []byte
}

// defaultInfo returns what a runner with a shell executor reports.
func defaultInfo(version Version) map[string]any {
	number := "17.11.0"
	if version == Before1711 {
		number = "17.9.3"
	}
	features := map[string]bool{}
	for _, name := range []string{
		"variables", "raw_variables", "artifacts", "artifacts_exclude", "upload_multiple_artifacts", "upload_raw_artifacts",
		"cache", "masking", "multi_build_steps", "trace_reset", "trace_checksum", "trace_size", "cancelable",
		"cancel_gracefully", "return_exit_code",
	} {
		features[name] = true
	}
	return map[string]any{
		"name": "runnerclient", "version": number, "revision": "00000000", "platform": "linux", "architecture": "amd64",
		"executor": "shell", "shell": "bash", "features": features, "config": map[string]string{"gpus": ""},
	}
}
