package proxy

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/intake"
	"lockstep.internal/services/relay/route"
)

// address is what a request asks for: /agents/<agent>/kubernetes/<path>, /agents/<agent>/http/<target>/<path> or /agents/<agent>/tcp/<target>.
type address struct {
	route.Instruction

	protocol audit.Protocol
	// prefix of the path that is not the target's.
	prefix string
}

const root = "/agents/"

// parse reads a request's path, and takes the header that picks a connection. Faults: not_found, invalid_argument.
func parse(u *url.URL, header http.Header) (address, error) {
	a, err := locate(u.Path, u.RawPath)
	if err != nil {
		return address{}, err
	}
	if values := header[intake.HeaderConnection]; len(values) > 0 {
		a.ConnectionID, err = strconv.ParseInt(values[0], 10, 64)
		if err != nil || a.ConnectionID <= 0 || len(values) > 1 {
			return address{}, fault.New(errcode.InvalidArgument, "the header %s must be the id of one connection", intake.HeaderConnection)
		}
		delete(header, intake.HeaderConnection)
	}
	return a, nil
}

// locate reads a path; raw is how it was sent, where that is another. Faults: not_found, invalid_argument.
func locate(path, raw string) (address, error) {
	below, is := strings.CutPrefix(path, root)
	id, rest, _ := strings.Cut(below, "/")
	agent, err := strconv.ParseInt(id, 10, 64)
	if !is || err != nil || agent <= 0 || strconv.FormatInt(agent, 10) != id {
		return address{}, fault.New(errcode.NotFound, "%.200q is no address of an agent, which is such as /agents/7/kubernetes/", path)
	}
	kind, rest, _ := strings.Cut(rest, "/")
	a := address{Instruction: route.Instruction{AgentID: agent}, protocol: audit.Protocol(kind), prefix: root + id + "/" + kind}
	switch a.protocol {
	case audit.Kubernetes:
		a.Target = route.KubernetesAPI
	case audit.HTTP, audit.TCP:
		a.Target, rest, _ = strings.Cut(rest, "/")
		a.prefix += "/" + a.Target
		if !route.ValidTarget(a.Target) || a.Target == route.KubernetesAPI {
			return address{}, fault.New(errcode.NotFound, "%.100q is not the name of a target", a.Target)
		}
	default:
		return address{}, fault.New(errcode.NotFound, "agents have no %.100q: it is kubernetes, http or tcp", kind)
	}
	if a.protocol == audit.TCP && rest != "" || raw != "" && !a.begins(raw) {
		return address{}, fault.New(errcode.NotFound, "%.200q is no address of a target", path)
	}
	if dotted(rest) || dotted(raw) {
		return address{}, fault.New(errcode.InvalidArgument, "a path with . or .. between its slashes means one thing here and another one there: send it without")
	}
	return a, nil
}

// begins says whether a path as it was sent begins with the prefix as it stands, and the target's part with a slash that is none of its own.
func (a address) begins(raw string) bool {
	rest, is := strings.CutPrefix(raw, a.prefix)
	return is && (rest == "" || rest[0] == '/')
}

func dotted(path string) bool {
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

// strip takes the prefix off a URL.
func (a address) strip(u *url.URL) {
	u.Path = slash(u.Path[len(a.prefix):])
	if u.RawPath != "" {
		u.RawPath = slash(u.RawPath[len(a.prefix):])
	}
}

func slash(path string) string {
	if path == "" {
		return "/"
	}
	return path
}
