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

// workspacePath is where the one volume is.
const workspacePath = "/workspace"

// maxComponentName in characters.
const maxComponentName = 63

// volume is the volume component.
type volume struct {
	name, path string
	mounted    bool
}

// components makes the spec of the container and the volume.
func (r *reader) components(top object) workspace.Spec {
	var spec workspace.Spec
	var containers []object
	var volumes []volume
	names := map[string]bool{}
	for _, component := range top.objects("components") {
		name := component.name("name")
		r.checkName(component, name, names)
		switch which := component.present(componentKinds()); {
		case len(which) == 0:
			component.rest()
			component.addf("container", "is missing: a component is a container or a volume")
			continue
		case len(which) > 1:
			component.addf(which[1], "is one kind of component too many; make it a component of its own")
		}
		component.ignore("attributes")
		for _, kind := range []string{"kubernetes", "openshift", "image", "plugin", "custom"} {
			if _, there := component.fields[kind]; there {
				component.ignore(kind)
				component.addf(kind, "components are not made; remove it: a workspace is one container and one volume")
			}
		}
		if inner, there := component.object("container"); there {
			containers = append(containers, inner)
		}
		if inner, there := component.object("volume"); there {
			volumes = append(volumes, volume{name: name, path: inner.path})
			spec.VolumeSize = r.volume(inner, len(volumes) > 1)
		}
		component.rest()
	}
	if len(containers) == 0 {
		top.addf("components", "have no container, and one is needed")
		return spec
	}
	for _, another := range containers[1:] {
		r.addf(another.path, "is a second container, and a workspace has one; remove it")
	}
	origin := r.container(containers[0], &spec, volumes)
	for _, v := range volumes {
		if !v.mounted {
			r.addf(v.path, "is not mounted; add it to volumeMounts of the container with path %s, or remove it", workspacePath)
		}
		origin["volume_size"] = v.path + ".size"
	}
	spec = spec.WithDefaults()
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
		component.addf(
			"name",
			"%.80q is no name: at most %d lower-case letters, digits and inner hyphens",
			name,
			maxComponentName,
		)
	case names[name]:
		component.addf("name", "%q is the name of another component too", name)
	}
	names[name] = true
}

// volume reads a volume component and returns its size.
func (r *reader) volume(v object, second bool) string {
	size := v.text("size")
	if v.flag("ephemeral", false) {
		v.addf("ephemeral", "is not done: the volume lives as long as the workspace; remove it")
	}
	v.rest()
	if second {
		r.addf(v.path, "is a second volume, and a workspace has one; remove it and keep its data below %s", workspacePath)
	}
	return size
}

// mounts checks that the volume is mounted where it is.
func (r *reader) mounts(container object, volumes []volume) {
	seen := map[string]bool{}
	for _, mount := range container.objects("volumeMounts") {
		name, at := mount.name("name"), mount.text("path")
		if at == "" {
			at = "/" + name
		}
		mount.rest()
		i := slices.IndexFunc(volumes, func(v volume) bool { return v.name == name })
		switch {
		case i < 0:
			mount.addf("name", "%.80q is no volume component of the devfile", name)
		case seen[name]:
			mount.addf("name", "%q is mounted already", name)
		case path.Clean(at) != workspacePath:
			mount.addf(
				"path",
				"%.80q is not possible: the volume is at %s; write that, or keep the data below it",
				at,
				workspacePath,
			)
		}
		seen[name] = true
		if i >= 0 {
			volumes[i].mounted = true
		}
	}
}

// check finds what the workspace's own rules say of the spec, and tells it by the devfile's fields.
func (r *reader) check(spec workspace.Spec, origin map[string]string, container string) {
	var wrong *fault.Error
	if !errors.As(spec.Validate(), &wrong) {
		return
	}
	for _, field := range slices.Sorted(maps.Keys(wrong.Details)) {
		at, known := origin[field]
		if !known {
			// What is said of a list, or of a field whose name is too long to be one.
			list, _, _ := strings.Cut(field, "[")
			if at, known = origin[list]; !known {
				at = container + "." + list
			}
		}
		r.addf(at, "%s", wrong.Details[field])
	}
}
