package architecture_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/architecture"
)

func TestModulesBuildAlone(t *testing.T) {
	t.Parallel()
	_, tree := read(t)
	require.Greater(t, len(tree.Modules), 8)
	require.NotEmpty(t, tree.Used)
	require.Empty(t, architecture.Modules(tree))
}

// sound is a small tree without faults: state uses libs, whose tests use testkit.
func sound() architecture.Tree {
	const own = architecture.Prefix
	return architecture.Tree{
		Go:   "1.26.0",
		Used: []string{"libs", "services/state", "tools/testkit", "tools"},
		Modules: []architecture.Module{
			{
				Dir:  "libs",
				Path: own + "libs",
				Go:   "1.26.0",
				Requires: []architecture.Requirement{
					{Path: "example.org/pgx", Version: "v5.1.0"},
					{Path: own + "tools/testkit", Version: "v0.0.0"},
				},
				Replaces: []architecture.Replacement{{Path: own + "tools/testkit", NewPath: "../tools/testkit"}},
			},
			{
				Dir:  "services/state",
				Path: own + "services/state",
				Go:   "1.26.0",
				Requires: []architecture.Requirement{
					{Path: "example.org/pgx", Version: "v5.1.0"},
					{Path: own + "libs", Version: "v0.0.0"},
				},
				Replaces: []architecture.Replacement{
					{Path: own + "libs", NewPath: "../../libs"}, {Path: own + "tools/testkit", NewPath: "../../tools/testkit"},
				},
			},
			{Dir: "tools/testkit", Path: own + "tools/testkit", Go: "1.26.0"},
			{
				Dir:  "tools/kubelab",
				Path: own + "tools/kubelab",
				Go:   "1.26.0",
				Requires: []architecture.Requirement{
					{Path: "example.org/pgx", Version: "v4.0.0"},
					{Path: "k8s.io/api", Version: "v0.36.3"},
				},
				Replaces: []architecture.Replacement{{Path: "k8s.io/api", NewPath: "k8s.io/api", NewVersion: "v0.36.3"}},
			},
			{
				Dir:      "tools",
				Path:     own + "tools",
				Go:       "1.26.0",
				Requires: []architecture.Requirement{{Path: "k8s.io/api", Version: "v0.36.3", Indirect: true}},
			},
		},
		Packages: []architecture.Package{
			{Path: own + "libs/postgres", TestImports: []string{own + "tools/testkit/pg"}},
			{Path: own + "services/state", Imports: []string{own + "libs/postgres"}},
			{Path: own + "tools/testkit/pg"},
		},
	}
}

func TestInvalidModulesAreFound(t *testing.T) {
	t.Parallel()
	require.Empty(t, architecture.Modules(sound()))
	const own = architecture.Prefix
	libs, state, testkit, kubelab, tools := 0, 1, 2, 3, 4
	for _, c := range []struct {
		name string
		harm func(*architecture.Tree)
		want string
	}{
		{
			"a module has another Go version", func(tree *architecture.Tree) { tree.Modules[state].Go = "1.25.0" },
			"services/state/go.mod: go 1.25.0, but go.work has 1.26.0",
		},
		{
			"a module is not called after its folder",
			func(tree *architecture.Tree) { tree.Modules[testkit].Dir = "tools/kit" },
			"tools/kit/go.mod: the module is called " + own + "tools/testkit",
		},
		{
			"a module is not in the workspace", func(tree *architecture.Tree) { tree.Used = tree.Used[1:] },
			"libs must be either in go.work",
		},
		{
			"kubelab is in the workspace", func(tree *architecture.Tree) { tree.Used = append(tree.Used, "tools/kubelab") },
			"tools/kubelab must be either in go.work",
		},
		{
			"the workspace uses what is not there", func(tree *architecture.Tree) {
				tree.Used = append(tree.Used,
					"services/gone")
			},
			"go.work uses services/gone, which has no go.mod",
		},
		{
			"a foreign module is replaced", func(tree *architecture.Tree) {
				tree.Modules[libs].Replaces = append(tree.Modules[libs].Replaces,
					architecture.Replacement{Path: "example.org/pgx", NewPath: "../../pgx"})
			},
			"libs/go.mod replaces example.org/pgx: only modules of this tree may be",
		},
		{
			"a Kubernetes module is replaced elsewhere than in kubelab", func(tree *architecture.Tree) {
				tree.Modules[libs].Replaces = append(tree.Modules[libs].Replaces, tree.Modules[kubelab].Replaces...)
			},
			"libs/go.mod replaces k8s.io/api",
		},
		{
			"kubelab replaces a Kubernetes module by a fork", func(tree *architecture.Tree) {
				tree.Modules[kubelab].Replaces[0].NewPath = "example.org/fork"
			},
			"tools/kubelab/go.mod replaces k8s.io/api",
		},
		{
			"a replacement leads elsewhere",
			func(tree *architecture.Tree) { tree.Modules[state].Replaces[0].NewPath = "../libs" },
			"services/state/go.mod replaces " + own + "libs by ../libs instead of its folder libs",
		},
		{
			"a replacement is by a version",
			func(tree *architecture.Tree) { tree.Modules[state].Replaces[0].NewVersion = "v1.0.0" },
			"services/state/go.mod replaces " + own + "libs by",
		},
		{
			"a replacement is missing",
			func(tree *architecture.Tree) { tree.Modules[state].Replaces = tree.Modules[state].Replaces[1:] },
			"services/state/go.mod needs a replace of " + own + "libs",
		},
		{
			"a replacement is not needed", func(tree *architecture.Tree) {
				tree.Modules[libs].Replaces = append(tree.Modules[libs].Replaces,
					architecture.Replacement{Path: own + "services/state", NewPath: "../services/state"})
			},
			"libs/go.mod replaces " + own + "services/state, which it does not need",
		},
		{
			"a module of the tree is required for nothing", func(tree *architecture.Tree) { tree.Packages[1].Imports = nil },
			"services/state/go.mod requires " + own + "libs, which nothing in it uses",
		},
		{
			"a module is required for what only tests of others use", func(tree *architecture.Tree) {
				tree.Modules[state].Requires = append(tree.Modules[state].Requires,
					architecture.Requirement{Path: own + "tools/testkit", Indirect: true})
			},
			"services/state/go.mod requires " + own + "tools/testkit, which nothing in it uses",
		},
		{
			"two versions of one dependency",
			func(tree *architecture.Tree) { tree.Modules[state].Requires[0].Version = "v5.2.0" },
			"example.org/pgx is required at different versions: v5.1.0 in libs; v5.2.0 in services/state",
		},
		{
			"kubelab has another version of a dependency",
			func(tree *architecture.Tree) { tree.Modules[tools].Requires[0].Version = "v0.37.0" },
			"tools/kubelab/go.mod: k8s.io/api is v0.36.3, but v0.37.0 in tools/go.mod",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tree := sound()
			c.harm(&tree)
			faults := architecture.Modules(tree)
			require.Contains(t, strings.Join(faults, "\n"), c.want)
		})
	}
}
