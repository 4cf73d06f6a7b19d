package runnerreplay

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Job is a job of the recording, which the server under test must offer.
type Job struct {
	// Name is unique, such as job101.
	Name  string
	Stage string
	// Script and AfterScript have one command per element. AfterScript may be empty.
	Script, AfterScript []string
	// Masked variables.
	Masked map[string]string
	// ArtifactPaths that are uploaded as an archive named default; empty means no artifacts.
	ArtifactPaths []string
	// Dependencies are names of earlier jobs whose artifacts are downloaded.
	Dependencies []string
	// TimeoutSeconds of the job.
	TimeoutSeconds int
}

// wireJob is the part of a job's message that the replay needs.
type wireJob struct {
	ID      int64  `json:"id"`
	Token   string `json:"token"`
	JobInfo struct {
		Name  string `json:"name"`
		Stage string `json:"stage"`
	} `json:"job_info"`
	GitInfo *struct {
		RepoURL *string `json:"repo_url"`
	} `json:"git_info"`
	RunnerInfo struct {
		Timeout int `json:"timeout"`
	} `json:"runner_info"`
	Variables []struct {
		Key    string `json:"key"`
		Value  string `json:"value"`
		Masked bool   `json:"masked"`
	} `json:"variables"`
	Steps []struct {
		Name   string   `json:"name"`
		Script []string `json:"script"`
	} `json:"steps"`
	Artifacts []struct {
		Name   string   `json:"name"`
		Paths  []string `json:"paths"`
		Type   string   `json:"artifact_type"`
		Format string   `json:"artifact_format"`
	} `json:"artifacts"`
	Dependencies []struct {
		ID            int64  `json:"id"`
		Token         string `json:"token"`
		Name          string `json:"name"`
		ArtifactsFile struct {
			Filename string `json:"filename"`
		} `json:"artifacts_file"`
	} `json:"dependencies"`
}

func (w wireJob) script(name string) []string {
	for _, step := range w.Steps {
		if step.Name == name {
			return step.Script
		}
	}
	return nil
}

// offered returns the job of a recorded answer.
func offered(body []byte) (Job, error) {
	var w wireJob
	if err := json.Unmarshal(body, &w); err != nil {
		return Job{}, fmt.Errorf("recorded job: %w", err)
	}
	job := Job{
		Name: w.JobInfo.Name, Stage: w.JobInfo.Stage, TimeoutSeconds: w.RunnerInfo.Timeout,
		Script: w.script("script"), AfterScript: w.script("after_script"), Masked: map[string]string{},
	}
	for _, v := range w.Variables {
		if v.Masked {
			job.Masked[v.Key] = v.Value
		}
	}
	for _, a := range w.Artifacts {
		job.ArtifactPaths = append(job.ArtifactPaths, a.Paths...)
	}
	for _, d := range w.Dependencies {
		job.Dependencies = append(job.Dependencies, d.Name)
	}
	return job, nil
}

// accepts returns why a runner could not execute the job of an answer, or nil.
func (j Job) accepts(got wireJob) error {
	masked := map[string]string{}
	for _, v := range got.Variables {
		if v.Masked {
			masked[v.Key] = v.Value
		}
	}
	switch {
	case got.ID == 0 || got.Token == "":
		return fmt.Errorf("%s has no id or no token", j.Name)
	case got.GitInfo == nil || got.GitInfo.RepoURL == nil:
		return fmt.Errorf("%s has no git_info.repo_url", j.Name)
	case got.JobInfo.Name != j.Name:
		return fmt.Errorf("%s is %q", j.Name, got.JobInfo.Name)
	case !slices.Equal(got.script("script"), j.Script) || !slices.Equal(got.script("after_script"), j.AfterScript):
		return fmt.Errorf("%s has other steps: %v", j.Name, got.Steps)
	case got.RunnerInfo.Timeout != j.TimeoutSeconds:
		return fmt.Errorf("%s has a timeout of %d s", j.Name, got.RunnerInfo.Timeout)
	case len(got.Artifacts) != min(len(j.ArtifactPaths), 1) ||
		len(j.ArtifactPaths) > 0 && (!slices.Equal(got.Artifacts[0].Paths, j.ArtifactPaths) ||
			got.Artifacts[0].Type != "archive" || got.Artifacts[0].Format != "zip"):
		return fmt.Errorf("%s has other artifacts: %v", j.Name, got.Artifacts)
	case len(got.Dependencies) != len(j.Dependencies):
		return fmt.Errorf("%s has other dependencies: %v", j.Name, got.Dependencies)
	}
	for key, value := range j.Masked {
		if masked[key] != value {
			return fmt.Errorf("%s has no masked variable %s", j.Name, key)
		}
	}
	for i, d := range got.Dependencies {
		if d.ID == 0 || d.Token == "" || d.Name != j.Dependencies[i] || d.ArtifactsFile.Filename == "" {
			return fmt.Errorf("%s has an invalid dependency %d: %v", j.Name, d.ID, d.Name)
		}
	}
	return nil
}
