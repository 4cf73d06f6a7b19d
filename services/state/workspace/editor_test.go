package workspace_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/services/state/workspace"
)

func TestEditorsAreChecked(t *testing.T) {
	t.Parallel()
	valid := func() workspace.Spec {
		return workspace.Spec{
			Image: "ide", Ports: []workspace.Port{{Name: "web", Number: 8080}},
			Editor: &workspace.Editor{
				Image: "registry.example/editor:1", Path: "/opt/editor", Command: "exec editor", Port: 13337,
			},
		}
	}
	require.NoError(t, valid().Validate())
	own := valid()
	own.Editor.Image, own.Editor.Path = "", ""
	require.NoError(t, own.Validate(), "an editor of the image of the container")
	for name, test := range map[string]struct {
		change func(*workspace.Spec)
		path   string
	}{
		"a bad image":         {func(s *workspace.Spec) { s.Editor.Image = "Editor" }, "editor.image"},
		"no path":             {func(s *workspace.Spec) { s.Editor.Path = "" }, "editor.path"},
		"the whole image":     {func(s *workspace.Spec) { s.Editor.Path = "/" }, "editor.path"},
		"a relative path":     {func(s *workspace.Spec) { s.Editor.Path = "opt" }, "editor.path"},
		"a path with dots":    {func(s *workspace.Spec) { s.Editor.Path = "/opt/../etc" }, "editor.path"},
		"a control character": {func(s *workspace.Spec) { s.Editor.Path = "/o\npt" }, "editor.path"},
		"a path and no image": {func(s *workspace.Spec) { s.Editor.Image = "" }, "editor.path"},
		"no command":          {func(s *workspace.Spec) { s.Editor.Command = "" }, "editor.command"},
		"a long command": {
			func(s *workspace.Spec) { s.Editor.Command = strings.Repeat("x", 33<<10) }, "editor.command",
		},
		"no port":           {func(s *workspace.Spec) { s.Editor.Port = 0 }, "editor.port"},
		"a large port":      {func(s *workspace.Spec) { s.Editor.Port = 65536 }, "editor.port"},
		"the agent's port":  {func(s *workspace.Spec) { s.Editor.Port = 60022 }, "editor.port"},
		"a port of its own": {func(s *workspace.Spec) { s.Editor.Port = 8080 }, "ports[0]"},
		"its name":          {func(s *workspace.Spec) { s.Ports[0].Name = "lockstep-editor" }, "ports[0]"},
		"its folder": {
			func(s *workspace.Spec) { s.Mounts = []workspace.Mount{{Path: "/lockstep-editor/bin"}} }, "mounts[0].path",
		},
	} {
		s := valid()
		test.change(&s)
		err := s.Validate()
		require.Error(t, err, name)
		require.Contains(t, fault.From(err).Details, test.path, name)
	}
}
