package audit

import (
	"encoding/json"
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
	// RequestID is the same in both records of a long-running request.
	RequestID string
	// UserID of a user; 0 for a service, which has a Subject.
	UserID  int64
	Subject string
	// WithoutRule reports whether no rule names the Subject. All such services share one budget.
	WithoutRule bool
	AgentID     int64
	// ConnectionID that it was sent through; 0 if it was not sent.
	ConnectionID int64
	Target       string
	Protocol     Protocol
	Phase        Phase
	Method       string
	// Verb and Resource of a request for a Kubernetes resource; otherwise empty.
	Verb     string
	Resource Resource
	// Path of a request that is not for a Kubernetes resource; without query, truncated to [MaxPath] bytes.
	Path string
	// Status of the response; 0 without one.
	Status    int
	StartedAt time.Time
	// Duration until the request ended.
	Duration time.Duration
	// BytesSent to the target and BytesReceived from it: bodies and upgraded connections, without headers.
	BytesSent, BytesReceived int64
	// Count of requests that the record sums up; 0 for the record of one request.
	Count int
	// Error is why there was no response, or why it was not completed.
	Error string
}

// Resource of the Kubernetes API. Core has the group "".
type Resource struct {
	Group, Version, Resource, Subresource, Namespace, Name string
}

const (
	// MaxPath of a record, in bytes.
	MaxPath = 1024
	// maxName of a resource's parts, in bytes, as in Kubernetes.
	maxName = 253
	// maxMethod of a record, in bytes: callers may send any method.
	maxMethod = 32
	// maxError of a record, in bytes.
	maxError = 512
)

// recordText is how much text of its caller one record of the budget holds, in bytes as it is stored.
const recordText = 512

// cost is how many records of the budget the record takes: one more for each recordText of what its caller chose.
func (r Record) cost() int {
	text, err := json.Marshal([]any{r.Subject, r.Target, r.Method, r.Verb, r.Resource, r.Path})
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return 1 + len(text)/recordText
}

// Truncate cuts a text to at most n bytes, and removes invalid UTF-8.
func Truncate(text string, n int) string { return strings.ToValidUTF8(text[:min(len(text), n)], "") }

// Describe returns the verb and the resource of a request to the Kubernetes API, as the API server reads them
// (https://kubernetes.io/docs/reference/using-api/api-concepts/). Both are empty for non-resource paths. watch:
// the query has watch=true; it applies to lists only.
func Describe(method, path string, watch bool) (verb string, resource Resource) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var r Resource
	watchPath := false
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		r.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		r.Group, r.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return "", Resource{}
	}
	if parts[0] == "watch" && len(parts) > 1 { // deprecated paths of watches
		watchPath, parts = true, parts[1:]
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
		*part = Truncate(*part, maxName)
	}
	return verbOf(method, r.Name != "", watchPath || watch && r.Name == ""), r
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
