package devfile

import (
	"path"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.internal/services/state/workspace"
)

// container reads the container component into the spec. It returns where in the devfile each of the
// spec's fields came from.
func (r *reader) container(c object, spec *workspace.Spec, volumes []volume) map[string]string {
	origin := map[string]string{"image": c.at("image"), "ports": c.at("endpoints"), "env": c.at("env")}
	spec.Image = c.text("image")
	spec.Command, spec.Args = c.words("command"), c.words("args")
	for i := range spec.Command {
		origin[index("command", i)] = index(c.at("command"), i)
	}
	for i := range spec.Args {
		origin[index("args", i)] = index(c.at("args"), i)
	}
	spec.CPU = r.amount(c, "cpu", origin)
	spec.Memory = r.amount(c, "memory", origin)
	spec.Env = r.env(c, origin)
	r.sources(c, spec.Env)
	r.mounts(c, volumes)
	spec.Ports = r.endpoints(c, origin)
	c.refuse("annotation", "is not written; remove it")
	c.rest()
	return origin
}

// amount is a limit, all of which is reserved, or where there is none the request.
func (r *reader) amount(c object, of string, origin map[string]string) string {
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
	asked, err := resource.ParseQuantity(request)
	most, errMost := resource.ParseQuantity(limit)
	switch {
	case err != nil:
		c.addf(of+"Request", "%.80q is not a quantity such as 500m, 2 or 1Gi", request)
	case errMost == nil && asked.Cmp(most) > 0:
		c.addf(of+"Request", "%.80q is more than the limit of %.80q", request, limit)
	}
	return limit
}

func (r *reader) env(c object, origin map[string]string) map[string]string {
	env := map[string]string{}
	for _, variable := range c.objects("env") {
		name, value := variable.text("name"), variable.text("value")
		variable.rest()
		switch _, twice := env[name]; {
		case name == "":
			variable.addf("name", "is missing")
			continue
		case slices.Contains(sourceVariables(), name):
			variable.addf("name", "%s is set by Lockstep; choose another", name)
		case twice:
			variable.addf("name", "%.80q is there twice", name)
		}
		env[name] = value
		origin["env["+clip(name)+"]"] = variable.path
	}
	return env
}

// sourceVariables tell a container where sources are.
func sourceVariables() []string { return []string{"PROJECTS_ROOT", "PROJECT_SOURCE"} }

// sources are at /workspace: the volume is there whether they are mounted or not.
func (r *reader) sources(c object, env map[string]string) {
	dedicated := c.flag("dedicatedPod", false)
	mounted := c.flag("mountSources", !dedicated)
	mapping := c.text("sourceMapping")
	if !mounted {
		return
	}
	if mapping != "" && path.Clean(mapping) != workspacePath {
		c.addf(
			"sourceMapping",
			"%.80q is not possible: the volume for sources is at %s; write that, or leave it out",
			mapping,
			workspacePath,
		)
	}
	for _, name := range sourceVariables() {
		env[name] = workspacePath
	}
}

// endpoints are ports, but for those that nobody outside the pod is to reach.
func (r *reader) endpoints(c object, origin map[string]string) []workspace.Port {
	var ports []workspace.Port
	for _, endpoint := range c.objects("endpoints") {
		port := workspace.Port{Name: endpoint.name("name"), Number: endpoint.port("targetPort")}
		exposure, protocol := endpoint.name("exposure"), endpoint.name("protocol")
		endpoint.ignore("path", "attributes")
		endpoint.flag("secure", false)
		endpoint.refuse("annotation", "is not written; remove it")
		switch protocol {
		case "", "http", "https", "ws", "wss", "tcp":
		case "udp":
			endpoint.addf("protocol", "udp is not served; remove the endpoint or use tcp")
		default:
			endpoint.addf("protocol", "%.40q is none of http, https, ws, wss and tcp", protocol)
		}
		switch exposure {
		case "", "public", "internal", "none":
		default:
			endpoint.addf("exposure", "%.40q is none of public, internal and none", exposure)
		}
		endpoint.rest()
		if exposure == "none" {
			continue
		}
		at := index("ports", len(ports))
		origin[at+".name"], origin[at+".number"] = endpoint.at("name"), endpoint.at("targetPort")
		ports = append(ports, port)
	}
	return ports
}
