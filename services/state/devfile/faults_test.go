package devfile_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/devfile"
)

func TestDevfileFaultsNameTheirPath(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, path, want string }{
		"no version":              {"components: [{name: a, container: {image: a}}]", "schemaVersion", "write 2.2.0"},
		"an old version":          {strings.Replace(with("", ""), "2.2.0", "1.0.0", 1), "schemaVersion", "must be 2.2.0"},
		"a newer version":         {strings.Replace(with("", ""), "2.2.0", "2.4.0", 1), "schemaVersion", "must be 2.2.0"},
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
		"objects to deploy": {
			with("", "- {name: db, kubernetes: {uri: db.yaml, deployByDefault: true}}"),
			"components[1].kubernetes.deployByDefault", "remove the component",
		},
		"an image to build": {
			with("", "- {name: db, image: {imageName: db, autoBuild: true}}"), "components[1].image.autoBuild", "not supported",
		},
		"an ephemeral volume of the sources": {
			with("volumeMounts: [{name: a, path: /workspace}]", "- {name: a, volume: {ephemeral: true}}"),
			"components[1].volume.ephemeral", "exists as long",
		},
		"sources over the system": {
			with("sourceMapping: /proc/1", ""), "components[0].container.sourceMapping", "a path of the system",
		},
		"a volume over the system": {
			with("volumeMounts: [{name: a, path: /workspace}, {name: b, path: /dev}]",
				"- {name: a, volume: {}}\n- {name: b, volume: {}}"),
			"components[0].container.volumeMounts[1].path", "a path of the system",
		},
		"a volume over the sources of another container": {
			with("", "- {name: db, container: {image: db, volumeMounts: [{name: a, path: /workspace}]}}\n- {name: a, volume: {}}"),
			"components[1].container.volumeMounts[0].path", "mount the volume at another path",
		},
		"a second container with a bad image": {
			with("", "- {name: db, container: {image: D B}}"), "components[1].container.image", "is not an image reference",
		},
		"the container's name of the agent": {
			with("", "- {name: lockstep-clone, container: {image: db}}"), "components[1].container", "not begin with lockstep-",
		},
		"a port of another container": {
			with("endpoints: [{name: a, targetPort: 80}]",
				"- {name: db, container: {image: db, endpoints: [{name: b, targetPort: 80}]}}"),
			"components[1].container.endpoints[0].targetPort", "another port",
		},
		"a command without id": {
			with("", "commands: [{exec: {component: tools, commandLine: a}}]"), "commands[0].id", "is missing",
		},
		"a command without line": {
			with("", "commands: [{id: a, exec: {component: tools}}]"), "commands[0].exec.commandLine", "is missing",
		},
		"a command twice": {
			with("", "commands: [{id: a, composite: {commands: []}}, {id: A, composite: {commands: []}}]"),
			"commands[1].id", "another command",
		},
		"a command of two kinds": {
			with("", "commands: [{id: a, exec: {component: tools, commandLine: a}, composite: {}}]"),
			"commands[0].composite", "second kind",
		},
		"a command with a bad folder": {
			with("", `commands: [{id: a, exec: {component: tools, commandLine: a, workingDir: 'a"b'}}]`),
			"commands[0].exec.workingDir", "is not a path",
		},
		"a command's bad variable": {
			with("", "commands: [{id: a, exec: {component: tools, commandLine: a, env: [{name: 1a, value: b}]}}]"),
			"commands[0].exec.env[0].name", "is not a variable name",
		},
		"an event without its command": {with("", "events: {postStart: [a]}"), "events.postStart[0]", "is not a command"},
		"an event in an unknown container": {
			with("", "commands: [{id: a, exec: {component: db, commandLine: b}}]\nevents: {postStart: [a]}"),
			"commands[0].exec.component", "is not a container",
		},
		"an event that applies": {
			with("", "commands: [{id: a, apply: {component: db}}]\nevents: {postStart: [a]}"),
			"events.postStart[0]", "does not run in a container",
		},
		"a composite of itself": {
			with("", "commands: [{id: a, composite: {commands: [a]}}]\nevents: {postStart: [a]}"),
			"events.postStart[0]", "more than 10 deep",
		},
		"a bomb of composites": {with("", compositeBomb()), "events.postStart[0]", "more than 1000 commands"},
		"an event before the start": {
			with("", "commands: [{id: a, exec: {component: tools, commandLine: b}}]\nevents: {preStart: [a]}"),
			"events.preStart", "make these commands postStart",
		},
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
		"a bad size": {
			with("volumeMounts: [{name: a, path: /workspace}]", "- {name: a, volume: {size: big}}"),
			"components[1].volume.size",
			"is not a quantity",
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

// compositeBomb names a thousand million commands in a few lines.
func compositeBomb() string {
	var b strings.Builder
	b.WriteString("commands:\n")
	for i := range 9 {
		fmt.Fprintf(&b, "- {id: c%d, composite: {commands: [%s]}}\n", i, strings.Repeat(fmt.Sprintf("c%d, ", i+1), 10))
	}
	b.WriteString("- {id: c9, composite: {commands: []}}\nevents: {postStart: [c0]}\n")
	return b.String()
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
