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
				"PROJECT_SOURCE": "/workspace",
			},
			Projects: []workspaceagent.Project{
				{
					Name: "frontend", URL: "https://git.example/shop/frontend.git", Revision: "v22", Folder: "src/frontend",
					Remotes: map[string]string{"fork": "git@git.example:ada/frontend.git"},
				},
				{Name: "docs", URL: "https://git.example/shop/docs.git"},
			},
		}},
		"least": {Spec: workspace.Spec{
			Image: "registry.example/ide:9",
			Env:   map[string]string{"PROJECTS_ROOT": "/workspace", "PROJECT_SOURCE": "/workspace"},
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

func TestDevfileFaultsNameTheirPath(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, path, want string }{
		"no version":              {"components: [{name: a, container: {image: a}}]", "schemaVersion", "write 2.2.0"},
		"an old version":          {strings.Replace(with("", ""), "2.2.0", "2.1.0", 1), "schemaVersion", "must be 2.2.0"},
		"a newer version":         {strings.Replace(with("", ""), "2.2.0", "2.3.0", 1), "schemaVersion", "must be 2.2.0"},
		"a version without patch": {strings.Replace(with("", ""), "2.2.0", "2.2", 1), "schemaVersion", "must be 2.2.0"},
		"a list":                  {"- a", "the document", "must be an object"},
		"a string":                {"devfile", "the document", "must be an object"},
		"no component":            {"schemaVersion: 2.2.0", "components", "no container"},
		"only a volume": {
			"schemaVersion: 2.2.0\ncomponents: [{name: v, volume: {}}]",
			"components",
			"no container",
		},
		"no image": {
			"schemaVersion: 2.2.0\ncomponents: [{name: a, container: {}}]",
			"components[0].container.image",
			"is required",
		},
		"a bad image": {
			strings.Replace(with("", ""), "ide:9", "IDE 9", 1),
			"components[0].container.image",
			"is not an image reference",
		},
		"an unknown field": {with("", "component: []"), "component", "has no such field"},
		"an unknown field of the container": {
			with("imagePullPolicy: Always", ""),
			"components[0].container.imagePullPolicy",
			"has no such field",
		},
		"a parent": {
			with("", "parent: {id: node, registryUrl: https://registry.example}"),
			"parent",
			"copy its content",
		},
		"a project without a repository": {with("", "projects: [{name: a}]"), "projects[0].git", "give the repository"},
		"a project as an archive": {
			with("", "projects: [{name: a, zip: {location: https://a.example/a.zip}}]"), "projects[0].zip", "use git",
		},
		"a project without a remote": {
			with("", "projects: [{name: a, git: {}}]"), "projects[0].git.remotes", "give the URL",
		},
		"a project with two remotes": {
			with("", "projects: [{name: a, git: {remotes: {b: 'https://b.example/b', c: 'https://c.example/c'}}}]"),
			"projects[0].git.checkoutFrom", "name one",
		},
		"a project with another remote": {
			with("", "projects: [{name: a, git: {remotes: {b: 'https://b.example/b'}, checkoutFrom: {remote: c}}}]"),
			"projects[0].git.checkoutFrom.remote", "not one of the remotes",
		},
		"a project of this machine": {
			with("", "projects: [{name: a, git: {remotes: {b: 'file:///etc'}}}]"), "projects[0]", "want https, http or ssh",
		},
		"a project outside of the volume": {
			with("", "projects: [{name: a, clonePath: ../a, git: {remotes: {b: 'https://b.example/b'}}}]"),
			"projects[0]", "below the home folder",
		},
		"a field of a project": {
			with("", "projects: [{name: a, git: {remotes: {b: 'https://b.example/b'}, depth: 1}}]"),
			"projects[0].git.depth", "no such field",
		},
		"a starter project with a password": {
			with("", "starterProjects: [{name: z, zip: {}}, {name: a, git: {remotes: {b: 'https://u:p@b.example/b'}}}]"),
			"starterProjects[1]", "add it to the secret file git-credentials",
		},
		"dependent projects": {with("", "dependentProjects: [{name: a}]"), "dependentProjects", "make them projects"},
		"events": {
			with("", "commands: [{id: i, exec: {component: tools}}]\nevents: {postStart: [i]}"),
			"events",
			"run these commands",
		},
		"a global limit": {
			with("", "metadata: {globalMemoryLimit: 2Gi}"),
			"metadata.globalMemoryLimit",
			"memoryLimit of the container",
		},
		"a second container": {
			with("", "- {name: db, container: {image: db}}"),
			"components[1].container",
			"second container",
		},
		"kubernetes": {
			with("", "- {name: db, kubernetes: {uri: db.yaml}}"),
			"components[1].kubernetes",
			"remove it",
		},
		"openshift":            {with("", "- {name: db, openshift: {uri: db.yaml}}"), "components[1].openshift", "remove it"},
		"an image to build":    {with("", "- {name: db, image: {imageName: db}}"), "components[1].image", "remove it"},
		"a plugin":             {with("", "- {name: db, plugin: {id: db}}"), "components[1].plugin", "remove it"},
		"a custom component":   {with("", "- {name: db, custom: {componentClass: db}}"), "components[1].custom", "remove it"},
		"an unknown component": {with("", "- {name: db, database: {}}"), "components[1].database", "has no such field"},
		"two kinds at once": {
			with("", "- {name: db, volume: {}, kubernetes: {}}"),
			"components[1].kubernetes",
			"second kind",
		},
		"no name":      {with("", "- {volume: {}}"), "components[1].name", "is missing"},
		"a name twice": {with("", "- {name: tools, volume: {}}"), "components[1].name", "another component"},
		"a bad name":   {with("", "- {name: My Volume, volume: {}}"), "components[1].name", "is not a name"},
		"a second volume": {
			with("volumeMounts: [{name: a, path: /workspace}, {name: b, path: /workspace}]", "- {name: a, volume: {}}\n- {name: b, volume: {}}"),
			"components[2].volume", "second volume",
		},
		"an unmounted volume": {with("", "- {name: a, volume: {size: 1Gi}}"), "components[1].volume", "volumeMounts"},
		"a volume at another path": {
			with("volumeMounts: [{name: m2, path: /home/user/.m2}]", "- {name: m2, volume: {}}"),
			"components[0].container.volumeMounts[0].path",
			"the volume is mounted at /workspace",
		},
		"a volume without path": {
			with("volumeMounts: [{name: m2}]", "- {name: m2, volume: {}}"),
			"components[0].container.volumeMounts[0].path",
			`"/m2" is not supported`,
		},
		"a volume twice": {
			with("volumeMounts: [{name: a, path: /workspace}, {name: a, path: /workspace}]", "- {name: a, volume: {}}"),
			"components[0].container.volumeMounts[1].name",
			"already",
		},
		"no such volume": {
			with("volumeMounts: [{name: a, path: /workspace}]", ""),
			"components[0].container.volumeMounts[0].name",
			"not a volume component",
		},
		"an ephemeral volume": {
			with("volumeMounts: [{name: a, path: /workspace}]", "- {name: a, volume: {ephemeral: true}}"),
			"components[1].volume.ephemeral",
			"exists as long",
		},
		"a bad size": {
			with("volumeMounts: [{name: a, path: /workspace}]", "- {name: a, volume: {size: big}}"),
			"components[1].volume.size",
			"is not a quantity",
		},
		"sources at another path": {
			with("sourceMapping: /projects", ""),
			"components[0].container.sourceMapping",
			"is mounted at /workspace",
		},
		"annotations": {
			with("annotation: {deployment: {a: b}}", ""),
			"components[0].container.annotation",
			"not supported",
		},
		"a bad limit": {with("memoryLimit: lots", ""), "components[0].container.memoryLimit", "is not a quantity"},
		"a bad request": {
			with("memoryLimit: 1Gi\nmemoryRequest: lots", ""),
			"components[0].container.memoryRequest",
			"is not a quantity",
		},
		"a request alone": {with("cpuRequest: lots", ""), "components[0].container.cpuRequest", "is not a quantity"},
		"too large a request": {
			with("cpuLimit: 500m\ncpuRequest: 1", ""),
			"components[0].container.cpuRequest",
			"more than the limit",
		},
		"no memory at all":         {with("memoryLimit: 0", ""), "components[0].container.memoryLimit", "is not positive"},
		"a command as a text":      {with("command: sleep 1", ""), "components[0].container.command", "must be a list"},
		"an object as an argument": {with("args: [{a: b}]", ""), "components[0].container.args[0]", "must be a string"},
		"a NUL byte":               {with(`args: [a, "b\0"]`, ""), "components[0].container.args[1]", "contains a NUL byte"},
		"a bad variable": {
			with("env: [{name: A-B, value: x}]", ""),
			"components[0].container.env[0]",
			"is not a variable name",
		},
		"a very long variable": {
			with("env: [{name: "+strings.Repeat("a", 300)+", value: x}]", ""),
			"components[0].container.env[0]",
			"is not a variable name",
		},
		"a nameless variable": {with("env: [{value: x}]", ""), "components[0].container.env[0].name", "is missing"},
		"a variable twice": {
			with("env: [{name: A, value: x}, {name: A, value: y}]", ""),
			"components[0].container.env[1].name",
			"is a duplicate",
		},
		"a reserved variable": {
			with("env: [{name: PROJECTS_ROOT, value: /x}]", ""),
			"components[0].container.env[0].name",
			"set by Lockstep",
		},
		"a list as a value": {
			with("env: [{name: A, value: [x]}]", ""),
			"components[0].container.env[0].value",
			"must be a string",
		},
		"mountSources": {
			with("mountSources: sometimes", ""),
			"components[0].container.mountSources",
			"true or false",
		},
		"no port": {
			with("endpoints: [{name: web}]", ""),
			"components[0].container.endpoints[0].targetPort",
			"is missing",
		},
		"a port as a text": {
			with(`endpoints: [{name: web, targetPort: "80"}]`, ""),
			"components[0].container.endpoints[0].targetPort",
			"port number",
		},
		"a port too large": {
			with("endpoints: [{name: web, targetPort: 65536}]", ""),
			"components[0].container.endpoints[0].targetPort",
			"1 to 65535",
		},
		"a port above int32": {
			with("endpoints: [{name: web, targetPort: 99999999999}]", ""),
			"components[0].container.endpoints[0].targetPort",
			"1 to 65535",
		},
		"a port twice": {
			with("endpoints: [{name: a, targetPort: 1, exposure: none}, {name: b, targetPort: 80}, {name: c, targetPort: 80}]", ""),
			"components[0].container.endpoints[2].targetPort", "another port",
		},
		"a port's long name": {
			with("endpoints: [{name: a-name-of-16-chars, targetPort: 80}]", ""),
			"components[0].container.endpoints[0].name",
			"is not a port name",
		},
		"udp": {
			with("endpoints: [{name: dns, targetPort: 53, protocol: udp}]", ""),
			"components[0].container.endpoints[0].protocol",
			"not supported",
		},
		"another protocol": {
			with("endpoints: [{name: a, targetPort: 53, protocol: ftp}]", ""),
			"components[0].container.endpoints[0].protocol",
			"not one of",
		},
		"another exposure": {
			with("endpoints: [{name: a, targetPort: 53, exposure: all}]", ""),
			"components[0].container.endpoints[0].exposure",
			"not one of",
		},
		"an annotated port": {
			with("endpoints: [{name: a, targetPort: 53, annotation: {a: b}}]", ""),
			"components[0].container.endpoints[0].annotation",
			"not supported",
		},
		"an undefined variable": {
			with("args: ['{{ version }}']", ""),
			"components[0].container.args[0]",
			`"version" is not defined`,
		},
		"a variable of a list": {with("", "variables: {a: [b]}"), "variables.a", "must be a string"},
		"variables as a list":  {with("", "variables: [a]"), "variables", "must be an object"},
		"a variable in a name": {
			with("endpoints: [{name: '{{a}}', targetPort: 53}]", "variables: {a: web}"),
			"components[0].container.endpoints[0].name",
			"is not a port name",
		},
		"too many ports":         {with(ports(51), ""), "components[0].container.endpoints", "the limit is 50"},
		"a component of no kind": {with("", "- {name: a}"), "components[1].container", "is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := devfile.Read([]byte(test.text))
			require.True(t, fault.Is(err, errcode.InvalidArgument), "%v", err)
			f := fault.From(err)
			require.Contains(t, f.Details, test.path, "%v", f.Details)
			require.Contains(t, f.Details[test.path], test.want)
			require.Contains(t, f.Message, test.path+": "+f.Details[test.path])
		})
	}
}

func ports(n int) string {
	var b strings.Builder
	b.WriteString("endpoints:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {name: p%d, targetPort: %d}\n", i, i+1)
	}
	return b.String()
}

func TestIgnoredDevfileFields(t *testing.T) {
	t.Parallel()
	bare, err := devfile.Read([]byte(with("", "")))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"metadata":                        with("", "metadata: {name: '', future: {field: [1]}}"),
		"commands":                        with("", "commands: [{id: a, exec: {component: tools, commandLine: '{{undefined}}'}}]"),
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

func TestDevfileReportsFaultsUpToALimit(t *testing.T) {
	t.Parallel()
	_, err := devfile.Read([]byte(with("memoryLimit: lots", "parent: {id: a}\nprojects: [{name: a}]")))
	require.Len(t, fault.From(err).Details, 3)
	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, "unknown%d: 1\n", i)
	}
	_, err = devfile.Read([]byte(with("", many.String())))
	f := fault.From(err)
	require.Len(t, f.Details, 20)
	require.Contains(t, f.Message, "980 more")
	require.Less(t, len(f.Message), 4<<10)
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"node", "least", "detached"} {
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
