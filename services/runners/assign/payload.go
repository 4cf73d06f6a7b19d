package assign

import (
	"strconv"
	"time"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/wire"
)

// Registry is a container registry that job tokens are for.
type Registry struct {
	// Host with an optional port, as in the names of images. Empty for none.
	Host string
}

// RegistryUser is the user name that goes with a job token.
const RegistryUser = "gitlab-ci-token"

// Answers makes the answers for claimed jobs. It is a [Payloads].
type Answers struct {
	Registry Registry
}

// Payload returns everything that a runner needs to execute a job.
func (a Answers) Payload(claimed job.Job, material Material, token string) wire.Job {
	d := material.Definition
	out := wire.NewJob(claimed.ID, token)
	out.JobInfo = wire.JobInfo{
		ID: claimed.ID, Name: claimed.Name, Stage: claimed.Stage, ProjectID: claimed.ProjectID,
		ProjectName: variable(d, "CI_PROJECT_NAME"), ProjectFullPath: variable(d, "CI_PROJECT_PATH"),
	}
	out.GitInfo.Ref = variable(d, "CI_COMMIT_REF_NAME")
	seconds := int64(claimed.RunTimeout / time.Second)
	out.RunnerInfo.Timeout = seconds
	out.Variables = append(out.Variables, a.variables(claimed, token)...)
	for _, v := range d.Variables {
		out.Variables = append(out.Variables, wire.Variable{
			Key: v.Key, Value: v.Value, Public: !v.Masked, Masked: v.Masked, File: v.File, Raw: v.Raw,
		})
	}
	out.Steps = append(out.Steps, wire.Step{
		Name: wire.StepScript, Script: d.Script, Timeout: seconds, When: wire.OnSuccess,
	})
	if len(d.AfterScript) > 0 {
		out.Steps = append(out.Steps, wire.Step{
			Name: wire.StepAfterScript, Script: d.AfterScript, Timeout: seconds, When: wire.Always, AllowFailure: true,
		})
	}
	if d.Artifacts != nil {
		out.Artifacts = append(out.Artifacts, artifact(*d.Artifacts))
	}
	for _, dependency := range material.Dependencies {
		out.Dependencies = append(out.Dependencies, wire.Dependency{
			ID: dependency.JobID, Token: token, Name: dependency.Name,
			ArtifactsFile: wire.ArtifactsFile{Filename: dependency.Filename, Size: dependency.Size},
		})
	}
	if a.Registry.Host != "" {
		out.Credentials = append(out.Credentials, wire.Credentials{
			Type: "registry", URL: a.Registry.Host, Username: RegistryUser, Password: token,
		})
	}
	for _, reason := range job.ReasonsOfRunners() {
		out.Features.FailureReasons = append(out.Features.FailureReasons, string(reason))
	}
	return out
}

// variables returns the variables that exist only when a runner takes the job.
func (a Answers) variables(claimed job.Job, token string) []wire.Variable {
	public := func(key, value string) wire.Variable {
		return wire.Variable{Key: key, Value: value, Public: true, Raw: true}
	}
	secret := func(key, value string) wire.Variable {
		return wire.Variable{Key: key, Value: value, Masked: true, Raw: true}
	}
	out := []wire.Variable{
		public("CI_JOB_ID", decimal(claimed.ID)),
		public("CI_PIPELINE_ID", decimal(claimed.PipelineID)),
		public("CI_JOB_STARTED_AT", claimed.StartedAt.Format(time.RFC3339)),
		public("CI_JOB_TIMEOUT", decimal(int64(claimed.RunTimeout/time.Second))),
		public("CI_RUNNER_ID", decimal(claimed.RunnerID)),
		secret("CI_JOB_TOKEN", token),
	}
	if a.Registry.Host != "" {
		out = append(out, public("CI_REGISTRY", a.Registry.Host), public("CI_REGISTRY_USER", RegistryUser),
			secret("CI_REGISTRY_PASSWORD", token))
	}
	return out
}

func artifact(a job.Artifacts) wire.Artifact {
	paths := a.Paths
	if paths == nil {
		paths = []string{}
	}
	return wire.Artifact{
		Name: a.Name, Untracked: a.Untracked, Paths: paths, Exclude: a.Exclude, When: wire.When(a.When),
		Type: "archive", Format: "zip", ExpireIn: a.ExpireIn,
	}
}

// variable returns the value of a variable of the definition that is not secret.
func variable(d *job.Definition, key string) string {
	for _, v := range d.Variables {
		if v.Key == key && !v.Masked {
			return v.Value
		}
	}
	return ""
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
