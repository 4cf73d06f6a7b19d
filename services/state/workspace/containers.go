package workspace

import (
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.internal/libs/workspaceagent"
)

// Limits of the containers of a spec.
const (
	maxContainers = 10
	maxMounts     = 20
	maxCommands   = 100
	maxLine       = 32 << 10
	maxWarnings   = 50
	maxWarning    = 500
)

// MainContainer is the name of the container that people enter.
const MainContainer = "workspace"

// VolumesFolder is the folder of the volume with the folders that mounts name.
const VolumesFolder = workspaceagent.StateFolder + "-volumes"

// Mount is a folder that a container has at a path.
type Mount struct {
	// Volume names the folder. Containers that mount the same name share it. Empty for the whole volume of the workspace.
	Volume string `json:"volume,omitempty"`
	// Path in the container, absolute and unique in it.
	Path string `json:"path"`
	// Ephemeral folders are empty whenever the workspace starts. All mounts of a folder must agree.
	Ephemeral bool `json:"ephemeral,omitempty"`
}

// Container runs beside the container of the workspace, in the same pod: all of them have the same address, and no port
// twice.
type Container struct {
	// Name is a DNS label, unique in the spec.
	Name string `json:"name"`
	// Image is required.
	Image string            `json:"image"`
	Env   map[string]string `json:"env,omitempty"`
	// CPU and Memory are Kubernetes quantities, with the same defaults as those of the spec.
	CPU     string   `json:"cpu,omitempty"`
	Memory  string   `json:"memory,omitempty"`
	Command []string `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	Mounts  []Mount  `json:"mounts,omitempty"`
	// PostStart are command lines for the shell of its image. They run in the background, one after the other, each time
	// that the container starts, and write to its log.
	PostStart []string `json:"post_start,omitempty"`
}

// Totals are the sizes of all containers together. A sum with a size that is no quantity is empty.
func (s Spec) Totals() Sizes {
	total := s.sizes()
	for _, c := range s.Containers {
		total.CPU, total.Memory = sum(total.CPU, c.CPU), sum(total.Memory, c.Memory)
	}
	return total
}

func sum(a, b string) string {
	total, errA := resource.ParseQuantity(a)
	more, errB := resource.ParseQuantity(b)
	if errA != nil || errB != nil {
		return ""
	}
	total.Add(more)
	return total.String()
}

func (s Spec) checkContainers(f *fieldErrors) {
	if len(s.Containers) > maxContainers {
		f.Addf("containers", "has %d containers, the limit is %d", len(s.Containers), maxContainers)
	}
	ephemeral := map[string]bool{}
	f.mounts("mounts", append([]Mount{{Path: Folder}}, s.Mounts...), 1, ephemeral)
	names := map[string]bool{MainContainer: true}
	for i, c := range s.Containers {
		at := index("containers", i)
		switch {
		case len(validation.IsDNS1123Label(c.Name)) > 0 || strings.HasPrefix(c.Name, "lockstep-"):
			f.Addf(at+".name", "%.80q is not a name: it must have up to 63 lower-case letters, digits and inner hyphens, "+
				"and not begin with lockstep-", c.Name)
		case names[c.Name]:
			f.Addf(at+".name", "%q is the name of another container", c.Name)
		}
		names[c.Name] = true
		f.image(at+".image", c.Image)
		f.variables(at+".env", c.Env)
		f.quantity(at+".cpu", c.CPU, true)
		f.quantity(at+".memory", c.Memory, false)
		f.words(at+".command", c.Command)
		f.words(at+".args", c.Args)
		f.mounts(at+".mounts", c.Mounts, 0, ephemeral)
		if len(c.PostStart) > maxCommands {
			f.Addf(at+".post_start", "has %d commands, the limit is %d", len(c.PostStart), maxCommands)
		}
		for j, line := range c.PostStart {
			f.line(index(at+".post_start", j), line)
		}
	}
	f.commands("post_start", s.PostStart)
	f.commands("commands", s.Commands)
	f.warnings(s.Warnings)
}

// mounts checks the mounts of one container. The first ones are not of the list at the path.
func (f *fieldErrors) mounts(at string, mounts []Mount, implied int, ephemeral map[string]bool) {
	if len(mounts) > maxMounts {
		f.Addf(at, "has %d mounts, the limit is %d", len(mounts)-implied, maxMounts-implied)
	}
	paths := map[string]bool{}
	for i, m := range mounts {
		at := index(at, i-implied)
		switch {
		case !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || m.Path == "/" || len(m.Path) > maxPath ||
			strings.ContainsAny(m.Path, ":\x00"):
			f.Addf(at+".path", "%.80q is not a plain absolute path", m.Path)
		case slices.ContainsFunc(reservedPaths(), func(reserved string) bool {
			return m.Path == reserved || strings.HasPrefix(m.Path, reserved+"/")
		}):
			f.Addf(at+".path", "%.80q is a path of the system or of the workspace agent", m.Path)
		case paths[m.Path]:
			f.Addf(at+".path", "%q is the path of another mount", m.Path)
		}
		paths[m.Path] = true
		was, known := ephemeral[m.Volume]
		switch {
		case m.Volume == "" && m.Ephemeral:
			f.Addf(at+".ephemeral", "the volume of the workspace is not ephemeral; name another")
		case m.Volume != "" && len(validation.IsDNS1123Label(m.Volume)) > 0:
			f.Addf(at+".volume", "%.80q is not a name of up to 63 lower-case letters, digits and inner hyphens", m.Volume)
		case known && was != m.Ephemeral:
			f.Addf(at+".ephemeral", "another mount of %q says %t", m.Volume, was)
		}
		ephemeral[m.Volume] = m.Ephemeral
	}
}

// reservedPaths cannot be mounted over.
func reservedPaths() []string {
	return []string{"/proc", "/sys", "/dev", "/lockstep", "/lockstep-editor", "/run/lockstep", "/run/secrets", "/var/run"}
}

func (f *fieldErrors) commands(at string, commands []workspaceagent.Command) {
	if len(commands) > maxCommands {
		f.Addf(at, "has %d commands, the limit is %d", len(commands), maxCommands)
	}
	names := map[string]bool{}
	for i, c := range commands {
		at := index(at, i)
		switch {
		case len(validation.IsDNS1123Label(c.Name)) > 0:
			f.Addf(at+".name", "%.80q is not a name of up to 63 lower-case letters, digits and inner hyphens", c.Name)
		case names[c.Name]:
			f.Addf(at+".name", "%q is the name of another command", c.Name)
		}
		names[c.Name] = true
		f.line(at+".line", c.Line)
	}
}

func (f *fieldErrors) line(at, line string) {
	switch {
	case strings.TrimSpace(line) == "":
		f.Addf(at, "is empty")
	case len(line) > maxLine:
		f.Addf(at, "has %d bytes, the limit is %d", len(line), maxLine)
	}
	f.text(at, line)
}

func (f *fieldErrors) warnings(warnings []string) {
	if len(warnings) > maxWarnings {
		f.Addf("warnings", "has %d warnings, the limit is %d", len(warnings), maxWarnings)
	}
	for i, w := range warnings {
		f.text(index("warnings", i), w)
		if len(w) > maxWarning {
			f.Addf(index("warnings", i), "has %d bytes, the limit is %d", len(w), maxWarning)
		}
	}
}

func (f *fieldErrors) image(at, image string) {
	switch {
	case image == "":
		f.Addf(at, "is required, such as registry.example/ide:9")
	case !IsImage(image):
		f.Addf(at, "%.80q is not an image reference such as registry.example/ide:9", image)
	}
}

// variables checks plain environment variables.
func (f *fieldErrors) variables(field string, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		at := field + "[" + clip(name) + "]"
		f.variable(at, name)
		if len(env[name]) > maxEnvValue {
			f.Addf(at, "has %d bytes, the limit is %d", len(env[name]), maxEnvValue)
		}
		f.text(at, env[name])
	}
}
