package wire

// Job answers a request for a job: everything that the runner needs to execute it. Lists are empty, not null.
type Job struct {
	ID int64 `json:"id"`
	// Token of the job. It authorizes the requests about it.
	Token         string         `json:"token"`
	AllowGitFetch bool           `json:"allow_git_fetch"`
	JobInfo       JobInfo        `json:"job_info"`
	GitInfo       GitInfo        `json:"git_info"`
	RunnerInfo    RunnerInfo     `json:"runner_info"`
	Variables     []Variable     `json:"variables"`
	Steps         []Step         `json:"steps"`
	Image         *Image         `json:"image,omitempty"`
	Services      []Image        `json:"services,omitempty"`
	Artifacts     []Artifact     `json:"artifacts"`
	Cache         []struct{}     `json:"cache"`
	Credentials   []Credentials  `json:"credentials"`
	Dependencies  []Dependency   `json:"dependencies"`
	Features      GitLabFeatures `json:"features"`
}

// NewJob returns a job with empty lists. Without a Git repository the runner needs the variable GIT_STRATEGY=none,
// which NewJob adds.
func NewJob(id int64, token string) Job {
	return Job{
		ID: id, Token: token,
		GitInfo:   GitInfo{RefType: "branch", Refspecs: []string{}},
		Variables: []Variable{{Key: "GIT_STRATEGY", Value: "none", Public: true}},
		Steps:     []Step{}, Artifacts: []Artifact{}, Cache: []struct{}{}, Credentials: []Credentials{},
		Dependencies: []Dependency{},
		Features:     GitLabFeatures{TraceSections: true, FailureReasons: []string{}},
	}
}

// JobInfo describes the job to people.
type JobInfo struct {
	ID              int64  `json:"id"`
	Name            string `json:"name"`
	Stage           string `json:"stage"`
	ProjectID       int64  `json:"project_id"`
	ProjectName     string `json:"project_name"`
	ProjectFullPath string `json:"project_full_path"`
}

// GitInfo is the commit to check out. It is required, even if there is nothing to check out.
type GitInfo struct {
	RepoURL   string   `json:"repo_url"`
	Ref       string   `json:"ref"`
	SHA       string   `json:"sha"`
	BeforeSHA string   `json:"before_sha"`
	RefType   string   `json:"ref_type"`
	Refspecs  []string `json:"refspecs"`
	Depth     int      `json:"depth"`
}

// RunnerInfo has the limits of the job.
type RunnerInfo struct {
	// Timeout in seconds.
	Timeout int64 `json:"timeout"`
}

// Variable is an environment variable of the job.
type Variable struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Public bool   `json:"public"`
	// Masked values are replaced in the trace.
	Masked bool `json:"masked,omitempty"`
	// File variables hold the path of a file with the value.
	File bool `json:"file,omitempty"`
	// Raw values are not expanded.
	Raw bool `json:"raw,omitempty"`
}

// When a step runs or artifacts are uploaded.
type When string

// The values of When.
const (
	OnSuccess When = "on_success"
	OnFailure When = "on_failure"
	Always    When = "always"
)

// Names of steps.
const (
	StepScript      = "script"
	StepAfterScript = "after_script"
)

// Step is a script.
type Step struct {
	// Name is [StepScript] or [StepAfterScript].
	Name string `json:"name"`
	// Script has one command per element.
	Script []string `json:"script"`
	// Timeout in seconds.
	Timeout      int64 `json:"timeout"`
	When         When  `json:"when"`
	AllowFailure bool  `json:"allow_failure"`
}

// Image is a container image.
type Image struct {
	Name       string   `json:"name"`
	Alias      string   `json:"alias,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Command    []string `json:"command,omitempty"`
}

// Artifact is a set of files that the runner uploads.
type Artifact struct {
	Name      string   `json:"name"`
	Untracked bool     `json:"untracked"`
	Paths     []string `json:"paths"`
	Exclude   []string `json:"exclude,omitempty"`
	When      When     `json:"when"`
	// Type is archive, or a type of report such as junit.
	Type string `json:"artifact_type"`
	// Format is zip, gzip or raw.
	Format string `json:"artifact_format"`
	// ExpireIn is a duration in words, such as 1 week. The runner sends it back.
	ExpireIn string `json:"expire_in,omitempty"`
}

// Credentials of a service that the job uses, such as a container registry.
type Credentials struct {
	Type     string `json:"type"`
	URL      string `json:"url"`
	Username string `json:"username"`
	Password string `json:"password"`
}

// Dependency is a job whose artifacts the runner downloads before the first step.
type Dependency struct {
	ID int64 `json:"id"`
	// Token authorizes the download.
	Token         string        `json:"token"`
	Name          string        `json:"name"`
	ArtifactsFile ArtifactsFile `json:"artifacts_file"`
}

// ArtifactsFile is the file that is downloaded. A dependency without a file name is skipped by the runner.
type ArtifactsFile struct {
	Filename string `json:"filename"`
	// Size in bytes.
	Size int64 `json:"size"`
}

// GitLabFeatures says what the server supports.
type GitLabFeatures struct {
	TraceSections bool `json:"trace_sections"`
	// FailureReasons that the runner may report. Others it reports as unknown_failure.
	FailureReasons []string `json:"failure_reasons"`
}
