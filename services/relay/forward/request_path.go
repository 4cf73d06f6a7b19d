package forward

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/route"
)

// requestPath is the path of a request: /agents/<agent>/kubernetes/<path>, /agents/<agent>/http/<target>/<path>,
// /agents/<agent>/tcp/<target>, or /agents/<agent>/tcp/<service>.<namespace>:<port> for a workspace.
type requestPath struct {
	route.Destination

	protocol audit.Protocol
	// prefix of the path, which the target does not see.
	prefix string
}

const agentsPath = "/agents/"

func kubernetesPath(agentID, connectionID int64) requestPath {
	to := route.Destination{AgentID: agentID, ConnectionID: connectionID, Target: route.KubernetesAPI}
	return requestPath{Destination: to, protocol: audit.Kubernetes}
}

// parse reads a request's path, and removes the header that names a connection. Faults: not_found, invalid_argument.
func parse(u *url.URL, header http.Header) (requestPath, error) {
	a, err := parsePath(u.Path, u.RawPath)
	if err != nil {
		return requestPath{}, err
	}
	if values := header[agentlistener.HeaderConnection]; len(values) > 0 {
		a.ConnectionID, err = strconv.ParseInt(values[0], 10, 64)
		if err != nil || a.ConnectionID <= 0 || len(values) > 1 {
			return requestPath{}, fault.New(errcode.InvalidArgument, "header %s must be the id of one connection",
				agentlistener.HeaderConnection)
		}
		delete(header, agentlistener.HeaderConnection)
	}
	return a, nil
}

// parsePath reads a path. raw is its encoded form, if that differs.
func parsePath(path, raw string) (requestPath, error) {
	below, found := strings.CutPrefix(path, agentsPath)
	id, rest, _ := strings.Cut(below, "/")
	agent, err := strconv.ParseInt(id, 10, 64)
	if !found || err != nil || agent <= 0 || strconv.FormatInt(agent, 10) != id {
		return requestPath{}, fault.New(errcode.NotFound,
			"path %.200q: does not start with /agents/<id>/kubernetes, /http or /tcp", path)
	}
	kind, rest, _ := strings.Cut(rest, "/")
	a := requestPath{
		Destination: route.Destination{AgentID: agent}, protocol: audit.Protocol(kind),
		prefix: agentsPath + id + "/" + kind,
	}
	switch a.protocol {
	case audit.Kubernetes:
		a.Target = route.KubernetesAPI
	case audit.HTTP, audit.TCP:
		a.Target, rest, _ = strings.Cut(rest, "/")
		a.prefix += "/" + a.Target
		named := route.ValidTarget(a.Target) && a.Target != route.KubernetesAPI
		if !named && (a.protocol != audit.TCP || !route.IsWorkspace(a.Target)) {
			return requestPath{}, fault.New(errcode.NotFound, "%.100q: not the name of a target", a.Target)
		}
	default:
		return requestPath{}, fault.New(errcode.NotFound, "protocol %.100q is unknown: use kubernetes, http or tcp", kind)
	}
	if a.protocol == audit.TCP && rest != "" || raw != "" && !a.isPrefixOf(raw) {
		return requestPath{}, fault.New(errcode.NotFound, "%.200q: not the path of a target", path)
	}
	if hasDotSegment(rest) || hasDotSegment(raw) {
		return requestPath{}, fault.New(errcode.InvalidArgument, "path: the segments . and .. are not allowed")
	}
	return a, nil
}

// isPrefixOf reports whether an encoded path begins with the unencoded prefix, followed by a slash or nothing.
func (a requestPath) isPrefixOf(raw string) bool {
	rest, found := strings.CutPrefix(raw, a.prefix)
	return found && (rest == "" || rest[0] == '/')
}

func hasDotSegment(path string) bool {
	if !strings.Contains(path, ".") {
		return false
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// strip removes the prefix from a URL.
func (a requestPath) strip(u *url.URL) {
	u.Path = orSlash(u.Path[len(a.prefix):])
	if u.RawPath != "" {
		u.RawPath = orSlash(u.RawPath[len(a.prefix):])
	}
}

func orSlash(path string) string {
	if path == "" {
		return "/"
	}
	return path
}
