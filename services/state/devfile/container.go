package devfile

import (
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.internal/services/state/workspace"
)

// container reads the container component into the spec. It returns the devfile path of each spec field.
func (r *reader) container(c object, spec *workspace.Spec, volumes []volume) map[string]string {
	origin := map[string]string{"image": c.at("image"), "ports": c.at("endpoints"), "env": c.at("env")}
	spec.Image = c.text("image")
	spec.Command, spec.Args = c.texts("command"), c.texts("args")
	for i := range spec.Command {
		origin[index("command", i)] = index(c.at("command"), i)
	}
	for i := range spec.Args {
		origin[index("args", i)] = index(c.at("args"), i)
	}
	spec.CPU = r.quantity(c, "cpu", origin)
	spec.Memory = r.quantity(c, "memory", origin)
	spec.Env = r.env(c, origin)
	r.sources(c, spec.Env)
	r.mounts(c, volumes)
	spec.Ports = r.endpoints(c, origin)
	c.refuse("annotation", "is not supported; remove it")
	c.refuseUnknown()
	return origin
}

// quantity returns the limit of cpu or memory, or the request if there is no limit. A workspace always requests its
// whole limit.
func (r *reader) quantity(c object, of string, origin map[string]string) string {
	limit, request := c.text(of+"Limit"), c.text(of+"Request")
	origin[of] = c.at(of + "Limit")
	if limit == "" {
		if request != "" {
			origin[of] = c.at(of + "Request")
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

func (r *reader) env(c object, origin map[string]string) map[string]string {
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
		origin["env["+clip(name)+"]"] = variable.path
	}
	return env
}

// sourceVariables are the environment variables with the path of the sources.
func sourceVariables() []string { return []string{"PROJECTS_ROOT", "PROJECT_SOURCE"} }

// sources sets the source variables if mountSources is true. The volume is always mounted.
func (r *reader) sources(c object, env map[string]string) {
	dedicated := c.boolean("dedicatedPod", false)
	mounted := c.boolean("mountSources", !dedicated)
	mapping := c.text("sourceMapping")
	if !mounted {
		return
	}
	if mapping != "" && path.Clean(mapping) != workspacePath {
		c.addf("sourceMapping", "%.80q is not supported: the volume is mounted at %s; use this path, or remove the field",
			mapping, workspacePath)
	}
	for _, name := range sourceVariables() {
		env[name] = workspacePath
	}
}

// endpoints returns the ports of all endpoints whose exposure is not none.
func (r *reader) endpoints(c object, origin map[string]string) []workspace.Port {
	var ports []workspace.Port
	for _, endpoint := range c.objects("endpoints") {
		port := workspace.Port{Name: endpoint.literal("name"), Number: endpoint.port("targetPort")}
		exposure, protocol := endpoint.literal("exposure"), endpoint.literal("protocol")
		endpoint.ignore("path", "attributes")
		endpoint.boolean("secure", false)
		endpoint.refuse("annotation", "is not supported; remove it")
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
		at := index("ports", len(ports))
		origin[at+".name"], origin[at+".number"] = endpoint.at("name"), endpoint.at("targetPort")
		ports = append(ports, port)
	}
	return ports
}
