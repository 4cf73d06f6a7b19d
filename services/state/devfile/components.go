package devfile

import (
	"cmp"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/services/state/workspace"
)

// maxComponentName in characters.
const maxComponentName = 63

// component is a container component.
type component struct {
	object

	name      string
	dedicated bool
	// sources is the path where it has the sources; empty if it has none.
	sources string
}

// components builds the spec from the components.
func (r *reader) components(top object, projects []project) workspace.Spec {
	var spec workspace.Spec
	var containers []component
	var volumes []*volume
	names := map[string]bool{}
	for _, c := range top.objects("components") {
		name := c.literal("name")
		r.checkName(c, name, names)
		switch kinds := c.present(componentKinds()); {
		case len(kinds) == 0:
			c.refuseUnknown()
			c.addf("container", "is missing: a component is a container, a volume or one for a deployment")
			continue
		case len(kinds) > 1:
			c.addf(kinds[1], "is a second kind of this component; a component has one; make it a separate component")
		}
		r.attributes(c)
		r.outside(c)
		if inner, exists := c.object("container"); exists {
			containers = append(containers, r.component(name, inner))
		}
		if inner, exists := c.object("volume"); exists {
			volumes = append(volumes, r.volume(name, inner))
		}
		c.refuseUnknown()
	}
	if len(containers) == 0 {
		top.addf("components", "have no container: a container component is required")
		return spec
	}
	commands := r.commands(top)
	main := mainOf(containers, commands)
	origin := map[string]string{"projects": "projects", "commands": "commands", "post_start": "events.postStart"}
	r.mainContainer(containers[main], &spec, volumes, projects, origin)
	for i, c := range containers {
		if i != main {
			r.furtherContainer(c, &spec, volumes, projects, origin)
		}
	}
	for i, p := range projects {
		spec.Projects = append(spec.Projects, p.Project)
		origin[index("projects", i)] = p.path
	}
	for _, v := range volumes {
		if !v.mounted {
			r.warnf(v.path, "no container mounts it")
		}
	}
	spec.VolumeSize, origin["volume_size"] = r.volumeSize(volumes)
	r.addCommands(top, &spec, commands, containers, main, origin)
	spec.Editor = r.editor(top, origin)
	spec.Warnings = r.warnings
	r.check(spec, origin, containers[main].path)
	return spec
}

// mainOf returns the container that people enter: the first that has the sources and in which a command runs. Otherwise
// the first that has the sources, or the first of all.
func mainOf(containers []component, commands []command) int {
	hasSources := func(c component) bool { return c.sources != "" }
	used := slices.IndexFunc(containers, func(c component) bool {
		return hasSources(c) && slices.ContainsFunc(commands, func(other command) bool { return other.component == c.name })
	})
	return max(0, cmp.Or(used+1, slices.IndexFunc(containers, hasSources)+1)-1)
}

// addCommands sets which commands run and which are offered.
func (r *reader) addCommands(
	top object, spec *workspace.Spec, commands []command, containers []component, main int, origin map[string]string,
) {
	names := make([]string, len(containers))
	for i, c := range containers {
		names[i] = c.name
	}
	started := r.events(top, commands, names)
	spec.PostStart, spec.Commands = started[names[main]], offered(commands, names[main])
	for i := range spec.Containers {
		for _, c := range started[spec.Containers[i].Name] {
			spec.Containers[i].PostStart = append(spec.Containers[i].PostStart, c.Line)
		}
	}
	for i, c := range commands {
		if c.line != "" && c.component != names[main] && slices.Contains(names, c.component) {
			r.warnf(index("commands", i), "is not offered to people, who enter the container %s", names[main])
		}
	}
	paths := map[string]string{}
	for i, c := range commands {
		paths[c.id] = index("commands", i)
	}
	for i, c := range spec.Commands {
		origin[index("commands", i)+".name"], origin[index("commands", i)+".line"] = paths[c.Name], paths[c.Name]
	}
	for i, c := range spec.PostStart {
		origin[index("post_start", i)+".name"], origin[index("post_start", i)+".line"] = paths[c.Name], paths[c.Name]
	}
}

// outside are components for a deployment of the project: a workspace does not need them, unless the devfile says so.
func (r *reader) outside(c object) {
	for _, kind := range []struct{ name, needed string }{
		{"kubernetes", "deployByDefault"}, {"openshift", "deployByDefault"}, {"image", "autoBuild"},
	} {
		inner, exists := c.object(kind.name)
		switch {
		case !exists:
		case inner.boolean(kind.needed, false):
			inner.addf(kind.needed, "is not supported: a workspace has containers and volumes only; remove the component")
		default:
			c.warnf(kind.name, "has no effect in a workspace")
		}
	}
	for _, kind := range []string{"plugin", "custom"} {
		if _, exists := c.fields[kind]; exists {
			c.ignore(kind)
			c.addf(kind, "is not supported; remove it: a workspace has containers and volumes")
		}
	}
}

// attributes warns about those that other tools apply to pods.
func (r *reader) attributes(o object) {
	attributes, _ := o.object("attributes")
	for _, name := range []string{"container-overrides", "pod-overrides"} {
		attributes.warn(name, "has no effect")
	}
}

func componentKinds() []string {
	return []string{"container", "volume", "kubernetes", "openshift", "image", "plugin", "custom"}
}

func (r *reader) checkName(component object, name string, names map[string]bool) {
	ok, _ := regexp.MatchString(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`, name)
	switch {
	case name == "":
		component.addf("name", "is missing")
	case !ok || len(name) > maxComponentName:
		component.addf("name", "%.80q is not a name: it must have at most %d lower-case letters, digits and inner hyphens",
			name, maxComponentName)
	case names[name]:
		component.addf("name", "%q is already the name of another component", name)
	}
	names[name] = true
}

// check validates the spec. It reports each error at the devfile field that origin gives.
func (r *reader) check(spec workspace.Spec, origin map[string]string, container string) {
	var invalid *fault.Error
	if !errors.As(spec.Validate(), &invalid) {
		return
	}
	for _, field := range slices.Sorted(maps.Keys(invalid.Details)) {
		at, known := origin[field]
		if !known {
			// An error of a whole list, or of a field whose name was shortened.
			list, _, _ := strings.Cut(field, "[")
			if at, known = origin[list]; !known {
				at = container + "." + list
			}
		}
		r.addf(at, "%s", invalid.Details[field])
	}
}
