package forward

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/relay/audit"
	"lockstep.internal/services/relay/policy"
)

const verbWatch = "watch"

// proxiedRequest is one request in flight.
type proxiedRequest struct {
	// Set by newRequest, then read only, except for ConnectionID, Status and Error of the record.
	audit.Record
	requestPath

	caller policy.Caller
	agent  directory.Agent // when the request began
	// readOnly reports whether the request is to the Kubernetes API and changes nothing.
	readOnly bool
	// deadline until which the request waits for the agent; zero if the caller names none.
	deadline time.Time
	// longRunning requests have two audit records and may last for hours.
	longRunning bool
	// summedUp requests have no audit record of their own.
	summedUp bool
	// forbiddenHeader is an impersonation header of the caller, which is refused; empty if there is none.
	forbiddenHeader string

	// Owned by the goroutine of ServeHTTP.
	impersonation policy.Impersonation
	body          *requestBody // nil without a body

	sent, received atomic.Int64

	// Guarded by Handler.mu.
	groups []string // of a long-running request
}

// newRequest parses a request. Fault not_found: the agent does not exist.
func (h *Handler) newRequest(caller policy.Caller, path requestPath, r *http.Request) (*proxiedRequest, error) {
	agent, found := h.cfg.Directory.Agent(path.AgentID)
	if !found {
		return nil, fault.New(errcode.NotFound, "agent %d does not exist", path.AgentID)
	}
	upgrades := r.Header.Get("Upgrade") != ""
	p := &proxiedRequest{
		caller: caller, requestPath: path, agent: agent,
		longRunning: upgrades || path.protocol == audit.TCP,
		Record: audit.Record{
			RequestID: uuid.NewString(), UserID: caller.UserID, Subject: caller.Subject, AgentID: path.AgentID,
			Target: path.Target, Protocol: path.protocol, Method: r.Method, Path: strings.TrimPrefix(r.URL.Path, path.prefix),
			StartedAt: h.cfg.Now(), WithoutRule: caller.UserID == 0 && !policy.Names(h.currentRules(), caller.Subject),
		},
	}
	query := queryOf(r.URL)
	p.deadline = deadlineOf(r, path.protocol, query, p.StartedAt)
	if path.protocol != audit.Kubernetes {
		return p, nil
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			p.forbiddenHeader = name
		}
	}
	// A server may merge two slashes, so the path is not safe to classify as read-only.
	classifiable := !upgrades && !strings.Contains(p.Path, "//")
	if p.Verb, p.Resource = audit.Describe(r.Method, p.Path, isTrue(query, "watch")); p.Verb != "" {
		p.Path = ""
	}
	p.longRunning = p.longRunning || p.Verb == verbWatch || isTrue(query, "follow")
	p.readOnly = classifiable && changesNothing(r.Method, p.Resource)
	return p, nil
}

// reviews are resources that clients create to ask a question, as kubectl auth whoami and can-i do. The API server
// answers and stores nothing.
var reviews = map[audit.Resource]bool{
	{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"}:       true,
	{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}:  true,
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}:   true,
	{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}:      true,
	{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: true,
}

// changesNothing reports whether a request to the Kubernetes API only reads.
func changesNothing(method string, to audit.Resource) bool {
	switch method {
	case http.MethodGet, http.MethodHead:
		// The subresource proxy forwards to a pod, service or node, where a GET may change something.
		return to.Subresource != "proxy"
	case http.MethodPost:
		to.Version, to.Namespace = "", ""
		return reviews[to]
	}
	return false
}

func queryOf(u *url.URL) url.Values {
	if u.RawQuery == "" {
		return nil
	}
	return u.Query()
}

// isTrue reads a boolean of a query as the Kubernetes API does: only 0 and false are false.
func isTrue(query url.Values, name string) bool {
	values, ok := query[name]
	return ok && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// setImpersonation names the user and groups to the agent
// (https://kubernetes.io/docs/reference/access-authn-authz/authentication/#user-impersonation).
func setImpersonation(header http.Header, as policy.Impersonation) {
	header["Impersonate-User"] = []string{as.User}
	if len(as.Groups) > 0 {
		header["Impersonate-Group"] = as.Groups
	}
}

type requestKey struct{}

func withRequest(ctx context.Context, p *proxiedRequest) context.Context {
	return context.WithValue(ctx, requestKey{}, p)
}

func requestOf(ctx context.Context) *proxiedRequest {
	p, _ := ctx.Value(requestKey{}).(*proxiedRequest)
	return p
}

// requestBody counts the bytes of a request.
type requestBody struct {
	io.ReadCloser

	request *proxiedRequest
	ended   atomic.Bool
}

func (b *requestBody) Read(data []byte) (int, error) {
	n, err := b.ReadCloser.Read(data)
	b.request.sent.Add(int64(n))
	if err != nil {
		b.ended.Store(true)
	}
	return n, err //nolint:wrapcheck // io.EOF must not be wrapped
}

// requestBodyPending reports whether the caller may still send its body. If so, the caller's connection cannot be used
// for another request.
func (p *proxiedRequest) requestBodyPending() bool { return p.body != nil && !p.body.ended.Load() }

// watchBody ends without an error when the relay drains and at the end of its lifetime: clients expect watches to end.
type watchBody struct {
	io.ReadCloser

	ctx context.Context //nolint:containedctx // of the request
}

func (b *watchBody) Read(data []byte) (int, error) {
	n, err := b.ReadCloser.Read(data)
	if err != nil && fault.Is(context.Cause(b.ctx), errcode.Unavailable) {
		err = io.EOF
	}
	return n, err
}

// responseWriter records the status of a response.
type responseWriter struct {
	http.ResponseWriter

	request *proxiedRequest
}

// Unwrap is for [http.ResponseController].
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *responseWriter) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.request.Status = status
	}
	w.ResponseWriter.WriteHeader(status)
}
