package devfile_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/devfile"
)

const nodejs = `
schemaVersion: 2.1.0
metadata: {name: nodejs, version: 2.0.0}
variables: {tag: "20"}
attributes: {team: web}
starterProjects: [{name: starter, git: {remotes: {origin: "https://git.example/starter.git"}}}]
components:
- name: runtime
  container:
    image: registry.example/node:{{tag}}
    memoryLimit: 1Gi
    args: [tail, -f, /dev/null]
    env: [{name: A, value: "1"}, {name: B, value: "2"}]
    endpoints: [{name: http, targetPort: 3000}]
    volumeMounts: [{name: modules, path: /modules}]
- name: modules
  volume: {size: 1Gi}
commands:
- id: Install
  exec: {component: runtime, commandLine: npm install, workingDir: /modules}
events: {postStart: [install]}
`

// from fetches the devfile of the id from a map.
func from(registry map[string]string) devfile.Fetch {
	return func(_ context.Context, p devfile.Parent) ([]byte, error) {
		text, found := registry[p.ID]
		if !found {
			return nil, fault.New(errcode.InvalidArgument, "there is no %s", p)
		}
		return []byte(text), nil
	}
}

func resolve(t *testing.T, child string, registry map[string]string) (devfile.Devfile, error) {
	t.Helper()
	return devfile.Resolve(t.Context(), []byte("schemaVersion: 2.2.0\n"+child), from(registry))
}

// TestChildHasTheContentOfItsParent compares with the devfile that one would write without a parent.
func TestChildHasTheContentOfItsParent(t *testing.T) {
	t.Parallel()
	whole := func(changes ...string) string {
		return strings.NewReplacer(append([]string{"name: nodejs, version: 2.0.0", "name: mine"}, changes...)...).
			Replace(nodejs)
	}
	const mine = "metadata: {name: mine}\nparent:\n  id: nodejs\n"
	for name, test := range map[string]struct{ child, same string }{
		"nothing more": {mine, whole()},
		"another variable": {
			mine + "  variables: {tag: \"22\"}", whole(`tag: "20"`, `tag: "22"`),
		},
		"a variable of the child": {mine + "variables: {tag: \"24\"}", whole(`tag: "20"`, `tag: "24"`)},
		"an overridden component": {
			mine + `  components:
  - name: runtime
    container:
      memoryLimit: 2Gi
      args: [sleep, "9"]
      env: [{name: B, value: "3"}, {name: C, value: "4"}]
      endpoints: [{name: http, targetPort: 8080}]
`,
			whole("memoryLimit: 1Gi", "memoryLimit: 2Gi", "[tail, -f, /dev/null]", `[sleep, "9"]`,
				`value: "2"}`, `value: "3"}, {name: C, value: "4"}`, "3000", "8080"),
		},
		"a field that is removed": {
			mine + "  components: [{name: runtime, container: {args: null}}]",
			whole("args: [tail, -f, /dev/null]", "args: null"),
		},
		"an overridden command, in another case": {
			mine + "  commands: [{id: install, exec: {commandLine: npm ci}}]", whole("npm install", "npm ci"),
		},
		"more components and commands": {
			mine + `
components: [{name: db, container: {image: "registry.example/db:1", mountSources: false}}]
commands: [{id: seed, exec: {component: db, commandLine: seed}}]
events: {postStart: [seed]}
`,
			whole("- name: modules\n",
				"- name: db\n  container: {image: \"registry.example/db:1\", mountSources: false}\n- name: modules\n",
				"events: {postStart: [install]}",
				"- {id: seed, exec: {component: db, commandLine: seed}}\nevents: {postStart: [install, seed]}"),
		},
		"a project of its own": {
			mine + "projects: [{name: own, git: {remotes: {origin: \"https://git.example/own.git\"}}}]",
			whole() + "projects: [{name: own, git: {remotes: {origin: \"https://git.example/own.git\"}}}]",
		},
	} {
		got, err := resolve(t, test.child, map[string]string{"nodejs": nodejs})
		require.NoError(t, err, name)
		want, err := devfile.Read([]byte(test.same))
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
}

func TestParentsHaveParents(t *testing.T) {
	t.Parallel()
	registry := map[string]string{"nodejs": nodejs}
	for i := range 6 {
		below := "nodejs"
		if i > 0 {
			below = fmt.Sprint("level", i-1)
		}
		registry[fmt.Sprint("level", i)] = "schemaVersion: 2.2.0\nparent:\n  id: " + below +
			fmt.Sprintf("\n  components: [{name: runtime, container: {cpuLimit: %d}}]", i+1)
	}
	got, err := resolve(t, "parent: {id: level3}", registry)
	require.NoError(t, err)
	require.Equal(t, "4", got.Spec.CPU)
	require.Empty(t, got.Name, "a child has its own name, or none")
	_, err = resolve(t, "parent: {id: level4}", registry)
	require.ErrorContains(t, err, "more than 5 parents")
	registry["self"] = "schemaVersion: 2.2.0\nparent: {id: self}"
	_, err = resolve(t, "parent: {id: self}", registry)
	require.ErrorContains(t, err, "more than 5 parents")
	require.True(t, fault.Is(err, errcode.InvalidArgument))
}

func TestInvalidParentsAreRefused(t *testing.T) {
	t.Parallel()
	registry := map[string]string{
		"nodejs": nodejs, "broken": "a: [", "list": "[a]", "large": strings.Repeat(" ", devfile.MaxSize) + nodejs,
		"alias": "a: &a 1\nb: *a", "scalar": "x", "unknown": nodejs + "wish: 1",
	}
	for child, want := range map[string]string{
		"parent: x":                              "parent: must be an object",
		"parent: {version: 1.0.0}":               "parent.id: is missing",
		"parent: {id: ../secret}":                "parent.id: \"../secret\" is not the name of a devfile",
		"parent: {id: a, uri: \"https://x/y\"}":  "parent.uri: is a second parent",
		"parent: {uri: u, registryUrl: r}":       "parent.uri: is complete",
		"parent: {id: a, version: \"../1\"}":     "parent.version",
		"parent: {id: a, kubernetes: {name: x}}": "parent.kubernetes: is not supported",
		"parent: {id: a, wish: 1}":               "parent.wish",
		"parent: {id: none}":                     "there is no none",
		"parent: {id: broken}":                   "the parent broken: the devfile is not valid YAML",
		"parent: {id: list}":                     "is not an object",
		"parent: {id: scalar}":                   "is not an object",
		"parent: {id: large}":                    "the parent large: the devfile has",
		"parent: {id: alias}":                    "the alias *a is not supported",
		"parent: {id: unknown}":                  "wish: a devfile has no such field",
		"parent: {id: nodejs, components: [{name: none, container: {}}]}":            "components[0]: the parent has no",
		"parent: {id: nodejs, projects: [{name: own}]}":                              "projects[0]: the parent has no",
		"parent: {id: nodejs}\ncomponents: [{name: runtime, container: {image: a}}]": `components[0]: the parent has`,
		"parent: {id: nodejs}\ncommands: [{id: INSTALL, exec: {}}]":                  "commands[0]: the parent has",
		"parent: {id: nodejs, components: [{name: modules, container: {}}]}":         "is a second kind of this component",
	} {
		_, err := resolve(t, child, registry)
		require.ErrorContains(t, err, want, child)
	}
	_, err := devfile.Read([]byte("schemaVersion: 2.2.0\nparent: {id: nodejs}"))
	require.ErrorContains(t, err, "parent: is not fetched")
}

// FuzzParents merges any two documents: nothing panics, and the same documents give the same result.
func FuzzParents(f *testing.F) {
	f.Add(nodejs, "schemaVersion: 2.2.0\nparent: {id: a, components: [{name: runtime, container: {cpuLimit: 1}}]}")
	f.Add("schemaVersion: 2.2.0\nparent: {id: a}", "schemaVersion: 2.2.0\nparent: {id: a}\nevents: {postStart: [a]}")
	f.Add("components: [1, {name: a}, [a]]", "parent: {id: a, components: [{name: a}, 2]}\ncomponents: x")
	f.Add("{}", "parent: {id: a, variables: [a], attributes: {env: [{name: a}]}}")
	f.Fuzz(func(t *testing.T, parent, child string) {
		registry := from(map[string]string{"a": parent})
		first, err := devfile.Resolve(t.Context(), []byte(child), registry)
		second, again := devfile.Resolve(t.Context(), []byte(child), registry)
		require.Equal(t, first, second)
		require.Equal(t, fmt.Sprint(err), fmt.Sprint(again))
		if err == nil {
			require.NoError(t, first.Spec.Validate())
			return
		}
		require.Contains(t, []fault.Code{errcode.InvalidArgument, errcode.PayloadTooLarge}, fault.CodeOf(err), "%v", err)
	})
}
