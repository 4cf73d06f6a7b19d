package devfile

import (
	"regexp"

	"go.yaml.in/yaml/v3"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/workspace"
)

// MaxSize of a devfile in bytes (64 KiB).
const MaxSize = 64 << 10

// Devfile contains the values that Lockstep uses.
type Devfile struct {
	// Name is metadata.name, unchanged; empty if missing. It can be an invalid name of a workspace.
	Name string
	// Spec is valid and includes the defaults.
	Spec workspace.Spec
}

// Read reads a devfile without a parent. The fault invalid_argument names every invalid field. Read returns the fault
// payload_too_large if the devfile exceeds MaxSize.
func Read(data []byte) (Devfile, error) {
	root, err := parseLimited(data)
	if err != nil {
		return Devfile{}, err
	}
	return read(root)
}

func parseLimited(data []byte) (*yaml.Node, error) {
	if len(data) > MaxSize {
		return nil, fault.New(errcode.PayloadTooLarge,
			"the devfile has %d bytes, the limit is %d", len(data), MaxSize)
	}
	return parse(data)
}

func read(root *yaml.Node) (Devfile, error) {
	r := &reader{remaining: maxExpanded}
	d := r.devfile(r.object("", root))
	if err := r.err(); err != nil {
		return Devfile{}, err
	}
	return d, nil
}

func schemaPattern() *regexp.Regexp {
	return regexp.MustCompile(`^2\.[0-3]\.[0-9]+(-[0-9a-z-]+(\.[0-9a-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)
}

func (r *reader) devfile(top object) Devfile {
	var d Devfile
	switch version := top.literal("schemaVersion"); {
	case version == "":
		top.addf("schemaVersion", "is missing: write 2.2.0")
	case !schemaPattern().MatchString(version):
		top.addf("schemaVersion", "%.40q is not supported; it must be 2.2.0 or another from 2.0.x to 2.3.x", version)
	}
	if metadata, exists := top.object("metadata"); exists {
		d.Name = metadata.literal("name")
		metadata.warn("globalMemoryLimit", "has no effect; set memoryLimit of the container")
	}
	r.variables = top.textMap("variables")
	r.attributes(top)
	top.refuse("parent", "is not fetched; copy its content into this devfile") // see Resolve
	top.refuse("dependentProjects", "are not cloned; make them projects")
	d.Spec = r.components(top, r.projects(top))
	top.refuseUnknown()
	return d
}
