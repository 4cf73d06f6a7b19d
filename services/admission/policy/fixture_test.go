package policy_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/admission/payload"
	"lockstep.internal/services/admission/policy"
)

func parse(t *testing.T, content string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("policy.yaml", []byte(content))
	require.NoError(t, err, content)
	return p
}

func load(t *testing.T, name string) *policy.Policy {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "examples", "admission", name))
	require.NoError(t, err)
	return parse(t, string(content))
}

func evaluate(t *testing.T, p *policy.Policy, in policy.Input) payload.Answer {
	t.Helper()
	a, err := p.Evaluate(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, in.Job.ID, a.JobID)
	return a
}

// input is a job of user ada in the project shop/web.
func input(change ...func(*policy.Input)) policy.Input {
	in := policy.Input{
		Job:     policy.Job{ID: 7, PipelineID: 3, Name: "test", Stage: "test", Tags: []string{"linux"}, Attempt: 1},
		Project: policy.Project{ID: 4, Path: "shop/web"},
		User: policy.User{ID: 98123, Login: "ada", Groups: []policy.Group{
			{ID: 50, Path: "hpc"},
		}},
		Groups:    []policy.Group{{ID: 21, Path: "shop"}},
		Variables: map[string]string{"CI_PIPELINE_SOURCE": "api"},
		Runners: []policy.Runner{
			{ID: 31, Tags: []string{"linux", "DiscoveryOne"}}, {ID: 32, Tags: []string{"linux", "tugNostromo"}},
		},
	}
	for _, f := range change {
		f(&in)
	}
	return in
}

func by(login string) func(*policy.Input) {
	return func(in *policy.Input) { in.User = policy.User{ID: 1, Login: login} }
}

func of(id int64, path string) func(*policy.Input) {
	return func(in *policy.Input) { in.Project = policy.Project{ID: id, Path: path} }
}

func on(runners ...int64) func(*policy.Input) {
	return func(in *policy.Input) {
		in.Runners = nil
		for _, id := range runners {
			in.Runners = append(in.Runners, policy.Runner{ID: id, Tags: []string{"linux"}})
		}
	}
}
