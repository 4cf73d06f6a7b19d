package workspace

import (
	"path"
	"strings"

	"lockstep.internal/libs/workspaceagent"
)

// EditorPortName is the name of the port of the editor.
const EditorPortName = "lockstep-editor"

// Editor is a program in the container of a workspace that people open in the browser. The workspace agent starts it.
type Editor struct {
	// Image has the tools of the editor in the folder Path, which are copied to the workspace. Empty if the image of the
	// container has them.
	Image string `json:"image,omitempty"`
	Path  string `json:"path,omitempty"`
	// Command is a command line for the shell. It serves HTTP at Port, of all addresses of the pod.
	Command string `json:"command"`
	Port    int32  `json:"port"`
}

func (s Spec) checkEditor(f *fieldErrors) {
	e := s.Editor
	if e == nil {
		return
	}
	if e.Image != "" {
		f.image("editor.image", e.Image)
	}
	switch {
	case e.Image == "" && e.Path != "":
		f.Addf("editor.path", "needs an image that has it")
	case e.Image != "" && (!path.IsAbs(e.Path) || path.Clean(e.Path) != e.Path || e.Path == "/" || len(e.Path) > maxPath ||
		strings.ContainsFunc(e.Path, func(r rune) bool { return r < ' ' || r == 0x7f })):
		f.Addf("editor.path", "%.80q is not the absolute path of a folder of the image", e.Path)
	}
	if e.Command == "" {
		f.Addf("editor.command", "is missing: give the command that serves the editor")
	} else {
		f.line("editor.command", e.Command)
	}
	switch {
	case e.Port < 1 || e.Port > 65535:
		f.Addf("editor.port", "%d is not a port number from 1 to 65535", e.Port)
	case e.Port == workspaceagent.Port:
		f.Addf("editor.port", "%d is the port of the workspace agent", e.Port)
	}
	for i, p := range s.Ports {
		if p.Number == e.Port || p.Name == EditorPortName {
			f.Addf(index("ports", i), "the name %s and the port %d are those of the editor", EditorPortName, e.Port)
		}
	}
}
