package workspace

import "time"

// TemplateDevfile is the template name of a workspace made from a devfile. No template has this name.
const TemplateDevfile = "(devfile)"

// Template is a named spec for new workspaces. ProjectID 0 makes it available to every project.
type Template struct {
	ProjectID int64
	Name      string
	Spec      Spec
	UpdatedAt time.Time
}
