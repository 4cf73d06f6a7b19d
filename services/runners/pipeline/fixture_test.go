package pipeline_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

const fileName = ".gitlab-ci.yml"

func parse(t *testing.T, content string) *cifile.File {
	t.Helper()
	file, err := cifile.Parse(fileName, []byte(content), cifile.Limits{})
	require.NoError(t, err)
	return file
}

func input() pipeline.Input {
	return pipeline.Input{
		PipelineID: 3, Source: "api", Project: pipeline.Project{ID: 4, Path: "acme/tools/app", DefaultBranch: "main"},
		Ref: pipeline.Ref{Name: "main"}, User: pipeline.User{ID: 5, Login: "ada"},
		ServerURL: &url.URL{Scheme: "https", Host: "ci.example.com", Path: "/"},
	}
}

func with(pairs ...string) pipeline.Input {
	in := input()
	for i := 0; i < len(pairs); i += 2 {
		in.Variables = append(in.Variables, job.Variable{Key: pairs[i], Value: pairs[i+1]})
	}
	return in
}

func plan(t *testing.T, content string, in pipeline.Input) []pipeline.Job {
	t.Helper()
	out, err := pipeline.NewPlan(parse(t, content), in)
	require.NoError(t, err)
	return out.Jobs
}

func refused(t *testing.T, content string, in pipeline.Input) string {
	t.Helper()
	out, err := pipeline.NewPlan(parse(t, content), in)
	var problems *cifile.Error
	require.ErrorAs(t, err, &problems)
	require.Zero(t, out)
	return err.Error()
}

func names(jobs []pipeline.Job) []string {
	out := make([]string, len(jobs))
	for i, j := range jobs {
		out[i] = j.Name
	}
	return out
}

// value returns the value of a variable; absent if there is none.
func value(j pipeline.Job, key string) string {
	for _, v := range j.Definition.Variables {
		if v.Key == key {
			return v.Value
		}
	}
	return "absent"
}

// statuses are the first attempts of a plan.
func statuses(jobs []pipeline.Job) []pipeline.Status {
	out := make([]pipeline.Status, len(jobs))
	for i, j := range jobs {
		out[i] = pipeline.Status{Node: j.Node, State: job.Created}
	}
	return out
}
