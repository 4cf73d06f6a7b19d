package devfile

import "lockstep.internal/services/state/workspace"

// editorAttribute is the attribute of a devfile that names its editor.
const editorAttribute = "lockstep.dev/editor"

// editor reads the attribute with the editor; nil without one.
func (r *reader) editor(top object, origin map[string]string) *workspace.Editor {
	attributes, _ := top.object("attributes")
	e, exists := attributes.object(editorAttribute)
	if !exists {
		return nil
	}
	for _, field := range []string{"image", "path", "command", "port"} {
		origin["editor."+field] = e.at(field)
	}
	read := &workspace.Editor{
		Image: e.text("image"), Path: e.text("path"), Command: e.text("command"), Port: e.port("port"),
	}
	e.refuseUnknown()
	return read
}
