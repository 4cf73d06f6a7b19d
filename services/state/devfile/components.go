package devfile

import (
	"errors"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/services/state/workspace"
)

// workspacePath is the mount path of the volume.
const workspacePath = "/workspace"

// maxComponentName in characters.
const maxComponentName = 63

// volume is the volume component.
type volume struct {
	name, path string
	mounted    bool
}

// components builds the spec from the container and volume components.
func (r *reader) components(top object, projects []project) workspace.Spec {
	var spec workspace.Spec
	var containers []object
	var volumes []volume
	names := map[string]bool{}
	for _, component := range top.objects("components") {
		name := component.literal("name")
		r.checkName(component, name, names)
		switch kinds := component.present(componentKinds()); {
		case len(kinds) == 0:
			component.refuseUnknown()
			component.addf("container", "is missing: a component is a container or a volume")
			continue
		case len(kinds) > 1:
			component.addf(kinds[1], "is a second kind of this component; a component has one; make it a separate component")
		}
		component.ignore("attributes")
		for _, kind := range []string{"kubernetes", "openshift", "image", "plugin", "custom"} {
			if _, exists := component.fields[kind]; exists {
				component.ignore(kind)
				component.addf(kind, "is not supported; remove it: a workspace has one container and one volume")
			}
		}
		if inner, exists := component.object("container"); exists {
			containers = append(containers, inner)
		}
		if inner, exists := component.object("volume"); exists {
			volumes = append(volumes, volume{name: name, path: inner.path})
			spec.VolumeSize = r.volume(inner, len(volumes) > 1)
		}
		component.refuseUnknown()
	}
	if len(containers) == 0 {
		top.addf("components", "have no container: a container component is required")
		return spec
	}
	for _, second := range containers[1:] {
		r.addf(second.path, "is a second container, and a workspace has one; remove it")
	}
	origin := r.container(containers[0], &spec, volumes)
	for i, p := range projects {
		spec.Projects = append(spec.Projects, p.Project)
		origin[index("projects", i)] = p.path
	}
	for _, v := range volumes {
		if !v.mounted {
			r.addf(v.path, "is not mounted; add it to volumeMounts of the container with path %s, or remove it", workspacePath)
		}
		origin["volume_size"] = v.path + ".size"
	}
	origin["projects"] = "projects"
	r.check(spec, origin, containers[0].path)
	return spec
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

// volume reads a volume component and returns its size.
func (r *reader) volume(v object, second bool) string {
	size := v.text("size")
	if v.boolean("ephemeral", false) {
		v.addf("ephemeral", "is not supported: the volume exists as long as the workspace; remove it")
	}
	v.refuseUnknown()
	if second {
		r.addf(v.path, "is a second volume, and a workspace has one; remove it and keep its data below %s", workspacePath)
	}
	return size
}

// mounts checks that the volume is mounted at workspacePath.
func (r *reader) mounts(container object, volumes []volume) {
	seen := map[string]bool{}
	for _, mount := range container.objects("volumeMounts") {
		name, at := mount.literal("name"), mount.text("path")
		if at == "" {
			at = "/" + name
		}
		mount.refuseUnknown()
		i := slices.IndexFunc(volumes, func(v volume) bool { return v.name == name })
		switch {
		case i < 0:
			mount.addf("name", "%.80q is not a volume component of this devfile", name)
		case seen[name]:
			mount.addf("name", "%q is mounted already", name)
		case path.Clean(at) != workspacePath:
			mount.addf("path", "%.80q is not supported: the volume is mounted at %s; use this path", at, workspacePath)
		}
		seen[name] = true
		if i >= 0 {
			volumes[i].mounted = true
		}
	}
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
