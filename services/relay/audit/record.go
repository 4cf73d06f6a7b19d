package audit

import (
	"net/http"
	"strings"
	"time"
)

// Phase of a request.
type Phase string

// Phases.
const (
	Begun Phase = "begun"
	Ended Phase = "ended"
)

// Protocol of a request.
type Protocol string

// Protocols.
const (
	Kubernetes Protocol = "kubernetes"
	HTTP       Protocol = "http"
	TCP        Protocol = "tcp"
)

// Record of one request.
type Record struct {
	// RequestID is the same in both records of one that lasts.
	RequestID string
	// UserID of a user; 0 for a service, which Subject names.
	UserID  int64
	Subject string
	AgentID int64
	// ConnectionID that it went through; 0 if it did not get that far.
	ConnectionID int64
	Target       string
	Protocol     Protocol
	Phase        Phase
	Method       string
	// Verb and Resource of a request to the Kubernetes API; empty where it is for no resource.
	Verb     string
	Resource Resource
	// Path without query of any other request, cut at [MaxPath].
	Path string
	// Status of the answer; 0 where there was none.
	Status    int
	StartedAt time.Time
	// Duration until it had ended.
	Duration time.Duration
	// BytesSent to the target and BytesReceived from it: bodies and upgraded connections, without headers.
	BytesSent, BytesReceived int64
	// Error says why there was no answer, or why it ended before its end.
	Error string
}

// Resource of the Kubernetes API. Core has the group "".
type Resource struct {
	Group, Version, Resource, Subresource, Namespace, Name string
}

const (
	// MaxPath of a record, in bytes.
	MaxPath = 1024
	// maxName of a resource's parts, in bytes, as Kubernetes has them.
	maxName = 253
	// maxMethod of a record, in bytes: a caller may make one up.
	maxMethod = 32
	// maxError of a record, in bytes.
	maxError = 512
)

// Cut takes from a text what is more than n bytes.
func Cut(text string, n int) string { return strings.ToValidUTF8(text[:min(len(text), n)], "") }

// Describe says what a request to the Kubernetes API does: its verb, and to which resource, as the API server sees it
// (https://kubernetes.io/docs/reference/using-api/api-concepts/). Both are empty where it is for no resource. asked is that the query asks for a watch, which counts for lists only.
func Describe(method, path string, asked bool) (verb string, resource Resource) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var r Resource
	always := false
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		r.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		r.Group, r.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return "", Resource{}
	}
	if parts[0] == "watch" && len(parts) > 1 { // the old way to ask for it
		always, parts = true, parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) >= 2 {
		r.Namespace = parts[1]
		if len(parts) >= 3 && parts[2] != "status" && parts[2] != "finalize" {
			parts = parts[2:]
		}
	}
	r.Resource = parts[0]
	if len(parts) >= 2 {
		r.Name = parts[1]
	}
	if len(parts) >= 3 {
		r.Subresource = parts[2]
	}
	for _, part := range []*string{&r.Group, &r.Version, &r.Resource, &r.Subresource, &r.Namespace, &r.Name} {
		*part = Cut(*part, maxName)
	}
	return verbOf(method, r.Name != "", always || asked && r.Name == ""), r
}

func verbOf(method string, one, watches bool) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if one {
			return "delete"
		}
		return "deletecollection"
	case http.MethodGet, http.MethodHead:
		switch {
		case watches:
			return "watch"
		case one:
			return "get"
		}
		return "list"
	}
	return strings.ToLower(method)
}
