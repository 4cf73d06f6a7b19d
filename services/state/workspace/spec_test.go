package workspace_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/workspace"
)

func TestCreationReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, _, err := workspace.New(workspace.Creation{Name: "9-Ä", Now: start(), Spec: workspace.Spec{
		Image:      "Registry.example/IDE",
		CPU:        "many",
		Memory:     "-1",
		VolumeSize: "500m",
		Command:    []string{"ok", "\xff"},
		Args:       []string{"\x00"},
		Ports:      []workspace.Port{{"http", 80}, {"http", 80}, {"UPPER", 0}},
		Env:        map[string]string{"1X": "", "OK": "a\x00"},
		SecretEnv:  []string{"OK", "A-B", "T", "T"},
		Projects: []workspaceagent.Project{
			{Name: "a", URL: "https://git.example/a"},
			{Name: "b", URL: "https://git.example/b", Folder: "./a"},
			{Name: "c", URL: "/etc"},
			{Name: "d", URL: "https://git.example/d", Folder: ".lockstep"},
		},
		SecretFiles: []string{"/abs", "../up", "a//b", "k", "k", "k/below", ""},
	}})
	require.True(t, fault.Is(err, errcode.InvalidArgument))
	require.Equal(t, []string{
		"args[0]",
		"command[1]",
		"cpu",
		"env[1X]",
		"env[OK]",
		"image",
		"memory",
		"name",
		"ports[1].name",
		"ports[1].number",
		"ports[2].name",
		"ports[2].number",
		"projects[1]",
		"projects[2]",
		"projects[3]",
		"secret_env[0]",
		"secret_env[1]",
		"secret_env[3]",
		"secret_files[0]",
		"secret_files[1]",
		"secret_files[2]",
		"secret_files[4]",
		"secret_files[5]",
		"secret_files[6]",
		"volume_size",
	}, sortedKeys(fault.From(err).Details))
	for _, name := range []string{"", "-a", "a-", "a.b", strings.Repeat("a", 41)} {
		_, _, err := workspace.New(workspace.Creation{Name: name, Spec: workspace.Spec{Image: "a"}})
		require.ErrorContains(t, err, "is not a workspace name", name)
	}
}

func TestImageReferences(t *testing.T) {
	t.Parallel()
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for _, image := range []string{
		"a",
		"a/b",
		"registry.example/ide:9",
		"localhost:5000/a_b/c__d.e-f:V1.2_x",
		"[::1]:5000/a",
		"a" + digest,
		"r.example/a:1" + digest,
	} {
		require.NoError(t, workspace.Spec{Image: image}.Validate(), image)
	}
	for _, image := range []string{
		"A",
		"a:",
		"a b",
		"a/",
		"/a",
		"a//b",
		"a@sha256:12",
		"http://a/b",
		"a:" + strings.Repeat("t", 129),
		"a\n",
	} {
		err := workspace.Spec{Image: image}.Validate()
		require.ErrorContains(t, err, "is not an image reference", image)
	}
}

func TestKeysOfSecretFiles(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, workspace.SecretFileKey("a/b"), workspace.SecretFileKey("a_b"))
	require.Regexp(t, `^[-._a-zA-Z0-9]{1,253}$`, workspace.SecretFileKey(strings.Repeat("ä/", 100)))
}

func FuzzSpecValidateNeverPanics(f *testing.F) {
	f.Add("a:1", "1", "1Gi", "http", "A", "v", "k/x")
	f.Fuzz(func(t *testing.T, image, cpu, memory, port, env, value, file string) {
		err := workspace.Spec{
			Image:       image,
			CPU:         cpu,
			Memory:      memory,
			VolumeSize:  memory,
			Ports:       []workspace.Port{{port, 1}},
			Env:         map[string]string{env: value},
			SecretEnv:   []string{value},
			SecretFiles: []string{file, file + "/x"},
			Command:     []string{value},
			Args:        []string{env},
		}.Validate()
		if err != nil {
			require.True(t, fault.Is(err, errcode.InvalidArgument))
			require.NotEmpty(t, fault.From(err).Details)
		}
	})
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
