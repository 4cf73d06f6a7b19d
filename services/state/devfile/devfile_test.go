package devfile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/devfile"
	"lockstep.internal/services/state/workspace"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func file(tb testing.TB, name string) []byte {
	tb.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	require.NoError(tb, err)
	return raw
}

func TestRead(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]devfile.Devfile{
		"node": {Name: "shop-frontend", Spec: workspace.Spec{
			Image: "registry.example/node-22:1-102", Args: []string{"tail", "-f", "/dev/null"},
			CPU: "1500m", Memory: "2Gi", VolumeSize: "5Gi",
			Ports: []workspace.Port{{Name: "http-node", Number: 3000}, {Name: "metrics", Number: 9090}},
			Env: map[string]string{
				"DEBUG_PORT": "5858", "NODE_ENV": "development", "RETRIES": "3", "PROJECTS_ROOT": "/workspace",
				"PROJECT_SOURCE": "/workspace/src/frontend",
			},
			Projects: []workspaceagent.Project{
				{
					Name: "frontend", URL: "https://git.example/shop/frontend.git", Revision: "v22", Folder: "src/frontend",
					Remotes: map[string]string{"fork": "git@git.example:ada/frontend.git"},
				},
				{Name: "docs", URL: "https://git.example/shop/docs.git"},
			},
			Commands: []workspaceagent.Command{
				{Name: "install", Line: "cd \"${PROJECT_SOURCE}\" || exit 1\nnpm install"},
				{Name: "run", Line: "cd \"${PROJECT_SOURCE}\" || exit 1\nnpm start"},
			},
		}},
		"least": {Spec: workspace.Spec{
			Image: "registry.example/ide:9",
			Env:   map[string]string{"PROJECTS_ROOT": "/workspace", "PROJECT_SOURCE": "/workspace"},
		}},
		"several": {Name: "shop", Spec: workspace.Spec{
			Image: "registry.example/java-21:3", Memory: "4Gi", VolumeSize: "20Gi",
			Env:   map[string]string{"PROJECTS_ROOT": "/projects", "PROJECT_SOURCE": "/projects/shop"},
			Ports: []workspace.Port{{Name: "http", Number: 8080}, {Name: "sql", Number: 5432}},
			Mounts: []workspace.Mount{
				{Volume: "m2", Path: "/home/user/.m2"}, {Volume: "tmp", Path: "/scratch", Ephemeral: true}, {Path: "/projects"},
			},
			Containers: []workspace.Container{{
				Name: "db", Image: "registry.example/postgres:17", CPU: "1", Env: map[string]string{"PGDATA": "/data/pg"},
				Args:      []string{"-c", "fsync=off"},
				Mounts:    []workspace.Mount{{Volume: "data", Path: "/data"}, {Volume: "tmp", Path: "/tmp", Ephemeral: true}},
				PostStart: []string{"cd \"/data\" || exit 1\npsql -f seed.sql"},
			}},
			PostStart: []workspaceagent.Command{
				{Name: "build", Line: "export MODE='it'\\''s fast'\ncd \"${PROJECT_SOURCE}\" || exit 1\nmvn package"},
				{Name: "run", Line: "mvn exec:java"},
			},
			Commands: []workspaceagent.Command{
				{Name: "build", Line: "export MODE='it'\\''s fast'\ncd \"${PROJECT_SOURCE}\" || exit 1\nmvn package"},
				{Name: "run", Line: "mvn exec:java"},
			},
			Projects: []workspaceagent.Project{{Name: "shop", URL: "https://git.example/shop.git"}},
			Warnings: []string{
				"components[2].image: has no effect in a workspace",
				"commands[1]: is not offered to people, who enter the container tools",
			},
		}},
		"detached": {Name: "Batch Runner", Spec: workspace.Spec{
			Image:   "registry.example/batch@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
			Command: []string{"/bin/batch"}, Args: []string{"--say=hello hello", "--format={{template}}", "$(HOME)"},
			Memory: "64Mi", Env: map[string]string{},
			Projects: []workspaceagent.Project{{Name: "batch", URL: "https://git.example/batch.git"}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := devfile.Read(file(t, name))
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.NoError(t, got.Spec.Validate())
		})
	}
}

// with returns a devfile with one container and these additional fields.
func with(container, top string) string {
	text := "schemaVersion: 2.2.0\ncomponents:\n- name: tools\n  container:\n    image: registry.example/ide:9\n"
	for line := range strings.Lines(container) {
		text += "    " + strings.TrimSuffix(line, "\n") + "\n"
	}
	return text + top
}

// TestWarnings reads what a workspace does not need.
func TestWarnings(t *testing.T) {
	t.Parallel()
	bare, err := devfile.Read([]byte(with("", "")))
	require.NoError(t, err)
	for want, text := range map[string]string{
		"components[1].kubernetes: has no effect in a workspace": with("", "- {name: db, kubernetes: {uri: db.yaml}}"),
		"components[1].openshift: has no effect in a workspace":  with("", "- {name: db, openshift: {uri: db.yaml}}"),
		"components[1].image: has no effect in a workspace":      with("", "- {name: db, image: {imageName: db}}"),
		"components[1].volume: no container mounts it":           with("", "- {name: a, volume: {size: 1Ei}}"),
		"components[0].container.annotation: has no effect":      with("annotation: {deployment: {a: b}}", ""),
		"attributes.pod-overrides: has no effect":                with("", "attributes: {pod-overrides: {a: b}, other: c}"),
		"metadata.globalMemoryLimit: has no effect; set memoryLimit of the container": with(
			"", "metadata: {globalMemoryLimit: 2Gi}"),
		"events.preStop: the commands do not run: a workspace may stop at any time": with(
			"", "events: {preStop: [a]}"),
	} {
		got, err := devfile.Read([]byte(text))
		require.NoError(t, err, want)
		require.Equal(t, []string{want}, got.Spec.Warnings)
		got.Spec.Warnings = nil
		require.Equal(t, bare, got, want)
	}
	many, err := devfile.Read([]byte(with("", strings.Repeat("- {name: NAME, image: {imageName: a}}\n", 1))))
	require.Error(t, err, many)
	var images strings.Builder
	for i := range 100 {
		fmt.Fprintf(&images, "- {name: image-%d, image: {imageName: a}}\n", i)
	}
	many, err = devfile.Read([]byte(with("", images.String())))
	require.NoError(t, err)
	require.Len(t, many.Spec.Warnings, 50)
	require.Equal(t, "there are more", many.Spec.Warnings[49])
}

func TestPeopleEnterTheContainerWithSourcesAndCommands(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, image string }{
		"one": {with("", ""), "registry.example/ide:9"},
		"the first with sources": {
			with("mountSources: false", "- {name: b, container: {image: b}}\n- {name: c, container: {image: c}}"), "b",
		},
		"the first without sources": {
			with("mountSources: false", "- {name: b, container: {image: b, mountSources: false}}"), "registry.example/ide:9",
		},
		"the one with commands": {
			with("", "- {name: b, container: {image: b}}\ncommands: [{id: a, exec: {component: b, commandLine: make}}]"), "b",
		},
	} {
		got, err := devfile.Read([]byte(test.text))
		require.NoError(t, err, name)
		require.Equal(t, test.image, got.Spec.Image, name)
	}
}

func TestVolumeSizes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ mounts, volumes, want string }{
		"the whole volume":    {"{name: a, path: /workspace}", "{name: a, volume: {size: 3Gi}}", "3Gi"},
		"a small folder":      {"{name: a, path: /cache}", "{name: a, volume: {size: 3Gi}}", ""},
		"a large folder":      {"{name: a, path: /cache}", "{name: a, volume: {size: 30Gi}}", "30Gi"},
		"an ephemeral folder": {"{name: a, path: /cache}", "{name: a, volume: {size: 30Gi, ephemeral: true}}", ""},
		"without a size":      {"{name: a, path: /workspace}", "{name: a, volume: {}}", ""},
		"the volume with a folder": {
			"{name: a, path: /workspace}, {name: b, path: /cache}",
			"{name: a, volume: {size: 3Gi}}\n- {name: b, volume: {size: 1Gi}}",
			"4Gi",
		},
	} {
		got, err := devfile.Read([]byte(with("volumeMounts: ["+test.mounts+"]", "- "+test.volumes)))
		require.NoError(t, err, name)
		require.Equal(t, test.want, got.Spec.VolumeSize, name)
	}
}

func TestIgnoredDevfileFields(t *testing.T) {
	t.Parallel()
	bare, err := devfile.Read([]byte(with("", "")))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"metadata":                        with("", "metadata: {name: '', future: {field: [1]}}"),
		"a command of no container":       with("", "commands: [{id: a, apply: {component: image, group: {kind: build}}}]"),
		"attributes":                      with("", "attributes: {a: {b: [c]}}"),
		"refused fields without content":  with("annotation: {}", "parent:\nprojects: []\nstarterProjects: null\nevents: {}"),
		"an unused anchor":                with("", "attributes: &a {b: c}"),
		"sources at the volume":           with("sourceMapping: /workspace/", ""),
		"an endpoint that is not exposed": with("endpoints: [{name: debug, targetPort: 5858, exposure: none}]", ""),
		"an unused variable":              with("", "variables: {a: b}"),
		"a dedicated pod":                 with("dedicatedPod: true\nmountSources: true", ""),
	} {
		got, err := devfile.Read([]byte(text))
		require.NoError(t, err, name)
		require.Equal(t, bare, got, name)
	}
	limited, err := devfile.Read([]byte(with("memoryLimit: 1Gi", "")))
	require.NoError(t, err)
	requested, err := devfile.Read([]byte(with("memoryLimit: 1Gi\nmemoryRequest: 1Mi", "")))
	require.NoError(t, err)
	require.Equal(t, limited, requested, "a request below the limit")
	without, err := devfile.Read([]byte(with("mountSources: false\nsourceMapping: /projects", "")))
	require.NoError(t, err)
	require.Empty(t, without.Spec.Env, "without mountSources the source variables are not set")
}

func TestUnsafeOrInvalidYAMLIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text, want string
		code       fault.Code
	}{
		"empty":               {"", "empty", errcode.InvalidArgument},
		"only a comment":      {"# nothing", "empty", errcode.InvalidArgument},
		"no YAML":             {"a: [", "not valid YAML: line", errcode.InvalidArgument},
		"invalid UTF-8":       {"a: \xff", "not valid YAML", errcode.InvalidArgument},
		"two documents":       {with("", "") + "---\na: b", "more than one", errcode.InvalidArgument},
		"a broken second one": {with("", "") + "---\na: [", "more than one", errcode.InvalidArgument},
		"a field twice": {
			with("image: registry.example/other:1", ""),
			`line 6 of the devfile: "image" is a duplicate key`,
			errcode.InvalidArgument,
		},
		"an alias": {
			"attributes: &a {b: c}\nvariables: *a",
			"line 2 of the devfile: the alias *a",
			errcode.InvalidArgument,
		},
		"an alias bomb":   {bomb(), "the alias *", errcode.InvalidArgument},
		"a merge":         {"a: {<<: {b: c}}", "plain string", errcode.InvalidArgument},
		"a list as a key": {"? [a, b]\n: c", "plain string", errcode.InvalidArgument},
		"a tag":           {"a: !!binary aGVsbG8=", "the tag", errcode.InvalidArgument},
		"depth": {
			strings.Repeat("[", 100) + strings.Repeat("]", 100),
			"nested more than 32 levels",
			errcode.InvalidArgument,
		},
		"great depth": {strings.Repeat("[", devfile.MaxSize), "devfile", errcode.InvalidArgument},
		"size": {
			strings.Repeat("#", devfile.MaxSize+1),
			"has 65537 bytes, the limit is 65536",
			errcode.PayloadTooLarge,
		},
		"a bomb of variables": {
			with("args: ['"+strings.Repeat("{{a}}", 5000)+"']",
				"variables: {a: "+strings.Repeat("x", 30<<10)+"}"), "variables: expand to more than", errcode.InvalidArgument,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := devfile.Read([]byte(test.text))
			require.True(t, fault.Is(err, test.code), "%v", err)
			require.Contains(t, fault.From(err).Message, test.want)
		})
	}
}

// bomb returns a few lines that expand to ten to the ninth words.
func bomb() string {
	text := "a0: &a0 [a, b, c, d, e, f, g, h, i, j]\n"
	for i := 1; i < 9; i++ {
		text += fmt.Sprintf("a%d: &a%d [%s*a%d]\n", i, i, strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 9), i-1)
	}
	return text
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"node", "least", "detached", "several"} {
		f.Add(file(f, name))
	}
	f.Add([]byte(bomb()))
	mounted, volume := "volumeMounts: [{name: a, path: /workspace}]", "- {name: a, volume: {size: '{{s}}'}}"
	f.Add([]byte(with(mounted, volume+"\nvariables: {s: 1Gi}")))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := devfile.Read(data)
		if err != nil {
			require.Contains(t, []fault.Code{errcode.InvalidArgument, errcode.PayloadTooLarge}, fault.CodeOf(err), "%v", err)
			require.Less(t, len(fault.From(err).Message), 64<<10)
			return
		}
		require.NoError(t, got.Spec.Validate())
		again, err := devfile.Read(data)
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}
