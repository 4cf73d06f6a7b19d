package devfile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/devfile"
	"lockstep.internal/services/state/workspace"
)

func TestAttributeNamesTheEditor(t *testing.T) {
	t.Parallel()
	const attribute = "attributes:\n  lockstep.dev/editor: "
	got, err := devfile.Read([]byte(with("", "variables: {v: \"1.2\"}\n"+attribute+
		`{image: "registry.example/editor:{{v}}", path: /opt/editor, command: exec editor, port: 13337}`)))
	require.NoError(t, err)
	require.Equal(t, &workspace.Editor{
		Image: "registry.example/editor:1.2", Path: "/opt/editor", Command: "exec editor", Port: 13337,
	}, got.Spec.Editor)
	for text, want := range map[string]string{
		"code":                             "attributes.lockstep.dev/editor: must be an object",
		"{command: a}":                     "attributes.lockstep.dev/editor.port: is missing",
		"{port: 80}":                       "attributes.lockstep.dev/editor.command: is missing",
		"{command: a, port: 80, wish: 1}":  "attributes.lockstep.dev/editor.wish",
		"{command: a, port: 80, path: /a}": "attributes.lockstep.dev/editor.path: needs an image",
		"{command: a, port: 80, image: A}": "attributes.lockstep.dev/editor.image",
	} {
		_, err := devfile.Read([]byte(with("", attribute+text)))
		require.ErrorContains(t, err, want, text)
	}
}
