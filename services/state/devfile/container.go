package devfile

import (
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.internal/services/state/workspace"
)

// component reads where a container has the sources.
func (r *reader) component(name string, c object) component {
	read := component{object: c, name: name, dedicated: c.boolean("dedicatedPod", false)}
	if mapping := c.text("sourceMapping"); c.boolean("mountSources", !read.dedicated) {
		read.sources = workspace.Folder
		if mapping != "" {
			read.sources = path.Clean(mapping)
		}
	}
	return read
}

// mainContainer reads the container that people enter into the spec. The volume is always mounted.
func (r *reader) mainContainer(
	c component, spec *workspace.Spec, volumes []*volume, projects []project, origin map[string]string,
) {
	read := r.container(c, volumes, projects, true, "", origin)
	origin["ports"] = c.at("endpoints")
	if c.sources != "" && c.sources != workspace.Folder {
		origin[index("mounts", len(read.Mounts))+".path"] = c.at("sourceMapping")
		read.Mounts = append(read.Mounts, workspace.Mount{Path: c.sources})
	}
	spec.Image, spec.Command, spec.Args, spec.Env = read.Image, read.Command, read.Args, read.Env
	spec.CPU, spec.Memory, spec.Mounts = read.CPU, read.Memory, read.Mounts
	spec.Ports = append(spec.Ports, r.endpoints(c.object, origin, 0)...)
}

// furtherContainer reads another container. It shares the pod, so a dedicated one is not supported.
func (r *reader) furtherContainer(
	c component, spec *workspace.Spec, volumes []*volume, projects []project, origin map[string]string,
) {
	read := r.container(c, volumes, projects, false, index("containers", len(spec.Containers))+".", origin)
	if c.sources != "" {
		origin[index(index("containers", len(spec.Containers))+".mounts", len(read.Mounts))+".path"] = c.at("sourceMapping")
		read.Mounts = append(read.Mounts, workspace.Mount{Path: c.sources})
	}
	if c.dedicated {
		c.warnf("dedicatedPod", "the container runs in the pod of the workspace")
	}
	spec.Containers = append(spec.Containers, read)
	spec.Ports = append(spec.Ports, r.endpoints(c.object, origin, len(spec.Ports))...)
}

// container reads a container component. Origin gets the devfile path of each field of the spec, whose names begin with
// the prefix.
func (r *reader) container(
	c component, volumes []*volume, projects []project, main bool, prefix string, origin map[string]string,
) workspace.Container {
	origin[prefix+"image"], origin[prefix+"env"] = c.at("image"), c.at("env")
	origin[prefix+"mounts"], origin[prefix+"name"] = c.at("volumeMounts"), c.path
	read := workspace.Container{Name: c.name, Image: c.text("image"), Command: c.texts("command"), Args: c.texts("args")}
	for i := range read.Command {
		origin[index(prefix+"command", i)] = index(c.at("command"), i)
	}
	for i := range read.Args {
		origin[index(prefix+"args", i)] = index(c.at("args"), i)
	}
	read.CPU = r.quantity(c.object, "cpu", prefix, origin)
	read.Memory = r.quantity(c.object, "memory", prefix, origin)
	read.Env = r.env(c.object, prefix, origin)
	r.sources(c, read.Env, projects)
	read.Mounts = r.mounts(c.object, volumes, main, prefix, origin)
	c.warn("annotation", "has no effect")
	c.ignore("endpoints") // see endpoints
	c.refuseUnknown()
	return read
}

// quantity returns the limit of cpu or memory, or the request if there is no limit. A workspace always requests its
// whole limit.
func (r *reader) quantity(c object, of, prefix string, origin map[string]string) string {
	limit, request := c.text(of+"Limit"), c.text(of+"Request")
	origin[prefix+of] = c.at(of + "Limit")
	if limit == "" {
		if request != "" {
			origin[prefix+of] = c.at(of + "Request")
		}
		return request
	}
	if request == "" {
		return limit
	}
	requested, err := resource.ParseQuantity(request)
	limited, errLimit := resource.ParseQuantity(limit)
	switch {
	case err != nil:
		c.addf(of+"Request", "%.80q is not a quantity such as 500m, 2 or 1Gi", request)
	case errLimit == nil && requested.Cmp(limited) > 0:
		c.addf(of+"Request", "%.80q is more than the limit of %.80q", request, limit)
	}
	return limit
}

func (r *reader) env(c object, prefix string, origin map[string]string) map[string]string {
	env := map[string]string{}
	for _, variable := range c.objects("env") {
		name, value := variable.text("name"), variable.text("value")
		variable.refuseUnknown()
		switch _, duplicate := env[name]; {
		case name == "":
			variable.addf("name", "is missing")
			continue
		case slices.Contains(sourceVariables(), name):
			variable.addf("name", "%s is set by Lockstep; choose another", name)
		case duplicate:
			variable.addf("name", "%.80q is a duplicate", name)
		}
		env[name] = value
		origin[prefix+"env["+clip(name)+"]"] = variable.path
	}
	return env
}

// sourceVariables are the environment variables with the path of the sources.
func sourceVariables() []string { return []string{"PROJECTS_ROOT", "PROJECT_SOURCE"} }

// sources sets the source variables of a container that has the sources. The source of the project is that of the first
// one, as other tools have it.
func (r *reader) sources(c component, env map[string]string, projects []project) {
	if c.sources == "" {
		return
	}
	env["PROJECTS_ROOT"], env["PROJECT_SOURCE"] = c.sources, c.sources
	if len(projects) > 0 {
		env["PROJECT_SOURCE"] = path.Join(c.sources, projects[0].Path())
	}
}

// endpoints returns the ports of all endpoints whose exposure is not none. Before them, the spec has some.
func (r *reader) endpoints(c object, origin map[string]string, before int) []workspace.Port {
	var ports []workspace.Port
	for _, endpoint := range c.objects("endpoints") {
		port := workspace.Port{Name: endpoint.literal("name"), Number: endpoint.port("targetPort")}
		exposure, protocol := endpoint.literal("exposure"), endpoint.literal("protocol")
		endpoint.ignore("path", "attributes")
		endpoint.boolean("secure", false)
		endpoint.warn("annotation", "has no effect")
		switch protocol {
		case "", "http", "https", "ws", "wss", "tcp":
		case "udp":
			endpoint.addf("protocol", "udp is not supported; remove the endpoint or use tcp")
		default:
			endpoint.addf("protocol", "%.40q is not one of http, https, ws, wss, tcp", protocol)
		}
		switch exposure {
		case "", "public", "internal", "none":
		default:
			endpoint.addf("exposure", "%.40q is not one of public, internal, none", exposure)
		}
		endpoint.refuseUnknown()
		if exposure == "none" {
			continue
		}
		at := index("ports", before+len(ports))
		origin[at+".name"], origin[at+".number"] = endpoint.at("name"), endpoint.at("targetPort")
		ports = append(ports, port)
	}
	return ports
}
