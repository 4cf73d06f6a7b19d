package workspace_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/state/workspace"
)

func TestContainersAndCommandsAreChecked(t *testing.T) {
	t.Parallel()
	many := func(n int) (mounts []workspace.Mount) {
		for i := range n {
			mounts = append(mounts, workspace.Mount{Path: "/m" + strings.Repeat("x", i)})
		}
		return mounts
	}
	for name, test := range map[string]struct {
		change     func(*workspace.Spec)
		path, want string
	}{
		"a relative path": {
			func(s *workspace.Spec) { s.Mounts = []workspace.Mount{{Path: "cache"}} }, "mounts[0].path", "plain absolute",
		},
		"the root": {
			func(s *workspace.Spec) { s.Mounts = []workspace.Mount{{Path: "/"}} }, "mounts[0].path", "plain absolute",
		},
		"the folder of the workspace": {
			func(s *workspace.Spec) { s.Mounts = []workspace.Mount{{Volume: "a", Path: "/workspace"}} },
			"mounts[0].path", "another mount",
		},
		"the agent's folder": {
			func(s *workspace.Spec) { s.Mounts = []workspace.Mount{{Path: "/lockstep/bin"}} }, "mounts[0].path", "agent",
		},
		"too many mounts": {func(s *workspace.Spec) { s.Mounts = many(20) }, "mounts", "has 20 mounts, the limit is 19"},
		"a bad folder": {
			func(s *workspace.Spec) { s.Mounts = []workspace.Mount{{Volume: "../a", Path: "/a"}} }, "mounts[0].volume", "name",
		},
		"an ephemeral workspace": {
			func(s *workspace.Spec) { s.Mounts = []workspace.Mount{{Path: "/a", Ephemeral: true}} },
			"mounts[0].ephemeral", "name another",
		},
		"a folder that is kept and is not": {
			func(s *workspace.Spec) {
				s.Mounts = []workspace.Mount{{Volume: "a", Path: "/a"}}
				s.Containers[0].Mounts = []workspace.Mount{{Volume: "a", Path: "/a", Ephemeral: true}}
			},
			"containers[0].mounts[0].ephemeral", "says false",
		},
		"the main container's name": {
			func(s *workspace.Spec) { s.Containers[0].Name = "workspace" }, "containers[0].name", "another container",
		},
		"the agent's name": {
			func(s *workspace.Spec) { s.Containers[0].Name = "lockstep-clone" }, "containers[0].name", "not begin with",
		},
		"no image":   {func(s *workspace.Spec) { s.Containers[0].Image = "" }, "containers[0].image", "is required"},
		"a bad size": {func(s *workspace.Spec) { s.Containers[0].CPU = "lots" }, "containers[0].cpu", "not a quantity"},
		"a bad command": {
			func(s *workspace.Spec) { s.Containers[0].Args = []string{"\x00"} }, "containers[0].args[0]", "NUL",
		},
		"a bad variable": {
			func(s *workspace.Spec) { s.Containers[0].Env = map[string]string{"A-B": ""} },
			"containers[0].env[A-B]", "variable name",
		},
		"an empty line": {
			func(s *workspace.Spec) { s.Containers[0].PostStart = []string{" "} }, "containers[0].post_start[0]", "is empty",
		},
		"too many containers": {
			func(s *workspace.Spec) { s.Containers = make([]workspace.Container, 11) }, "containers", "the limit is 10",
		},
		"a command's name": {
			func(s *workspace.Spec) { s.Commands = []workspaceagent.Command{{Name: "A b", Line: "a"}} },
			"commands[0].name", "name",
		},
		"a command twice": {
			func(s *workspace.Spec) {
				s.PostStart = []workspaceagent.Command{{Name: "a", Line: "a"}, {Name: "a", Line: "b"}}
			},
			"post_start[1].name", "another command",
		},
		"a long line": {
			func(s *workspace.Spec) {
				s.Commands = []workspaceagent.Command{{Name: "a", Line: strings.Repeat("a", 32<<10+1)}}
			},
			"commands[0].line", "the limit is 32768",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := workspace.Spec{Image: "ide", Containers: []workspace.Container{{Name: "db", Image: "db"}}}
			require.NoError(t, s.Validate())
			test.change(&s)
			err := s.Validate()
			require.Error(t, err)
			require.Contains(t, fault.From(err).Details[test.path], test.want, "%v", err)
		})
	}
}

// TestMaximumsCountAllContainers: a second container must not be a way around the maximum.
func TestMaximumsCountAllContainers(t *testing.T) {
	t.Parallel()
	c := workspace.Creation{Name: "ide", ProjectID: 4, AgentID: 7, UserID: 9, Spec: workspace.Spec{
		Image: "ide", CPU: "1", Memory: "1Gi", Containers: []workspace.Container{{Name: "db", Image: "db", CPU: "1500m"}},
	}, Defaults: workspace.Sizes{Memory: "512Mi"}}
	w, _, err := workspace.New(c)
	require.NoError(t, err)
	require.Equal(t, "512Mi", w.Spec.Containers[0].Memory, "the default of the agent")
	require.Equal(t, "2500m", w.Spec.Totals().CPU)
	require.Equal(t, "1536Mi", w.Spec.Totals().Memory)
	c.Maximums = workspace.Maximums{CPU: workspace.Maximum{Quantity: "2", Owner: "the cell"}}
	_, _, err = workspace.New(c)
	require.ErrorContains(t, err, `"2500m" is more than max_cpu of the cell, which is 2`)
}
