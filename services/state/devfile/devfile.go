package devfile

import (
	"regexp"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/workspace"
)

// MaxSize of a devfile in bytes (64 KiB).
const MaxSize = 64 << 10

// Devfile is what Lockstep takes from a devfile.
type Devfile struct {
	// Name is metadata.name as it stands there; empty where there is none. It need not be a workspace's name.
	Name string
	// Spec with its defaults; it is valid.
	Spec workspace.Spec
}

// Read reads a devfile.
func Read(data []byte) (Devfile, error) {
	if len(data) > MaxSize {
		return Devfile{}, fault.New(
			errcode.PayloadTooLarge,
			"the devfile has %d bytes, at most %d are read",
			len(data),
			MaxSize,
		)
	}
	root, err := parse(data)
	if err != nil {
		return Devfile{}, err
	}
	r := &reader{left: maxExpanded}
	d := r.devfile(r.object("", root))
	if err := r.err(); err != nil {
		return Devfile{}, err
	}
	return d, nil
}

func schemaPattern() *regexp.Regexp {
	return regexp.MustCompile(`^2\.2\.[0-9]+(-[0-9a-z-]+(\.[0-9a-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)
}

func (r *reader) devfile(top object) Devfile {
	var d Devfile
	switch version := top.name("schemaVersion"); {
	case version == "":
		top.addf("schemaVersion", "is missing: write 2.2.0")
	case !schemaPattern().MatchString(version):
		top.addf("schemaVersion", "%.40q cannot be read; it must be 2.2.0 or another 2.2", version)
	}
	if metadata, there := top.object("metadata"); there {
		d.Name = metadata.name("name")
		metadata.refuse("globalMemoryLimit", "is not kept; set memoryLimit of the container")
	}
	r.variables = top.texts("variables")
	top.ignore("attributes", "commands")
	top.refuse("events", "would run commands, which is not done; let the container's command do it, or remove them")
	top.refuse("parent", "is not fetched; write into the devfile what it takes from there")
	top.refuse("projects", "are not cloned; remove them and clone into /workspace")
	top.refuse("starterProjects", "are not cloned; remove them and clone into /workspace")
	top.refuse("dependentProjects", "are not cloned; remove them and clone into /workspace")
	d.Spec = r.components(top)
	top.rest()
	return d
}
