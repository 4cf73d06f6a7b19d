package forward

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/relay/audit"
)

// status is an error of the Kubernetes API
// (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/).
type status struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"` //nolint:tagliatelle // Kubernetes' own
	Metadata   map[string]string `json:"metadata"`
	Status     string            `json:"status"`
	Message    string            `json:"message"`
	Reason     string            `json:"reason,omitempty"`
	Code       int               `json:"code"`
}

// statusReasons are Kubernetes' names of HTTP statuses.
var statusReasons = map[int]string{
	http.StatusBadRequest:          "BadRequest",
	http.StatusUnauthorized:        "Unauthorized",
	http.StatusForbidden:           "Forbidden",
	http.StatusNotFound:            "NotFound",
	http.StatusConflict:            "Conflict",
	http.StatusTooManyRequests:     "TooManyRequests",
	http.StatusInternalServerError: "InternalError",
	http.StatusServiceUnavailable:  "ServiceUnavailable",
	http.StatusGatewayTimeout:      "Timeout",
}

// writeError responds with an error: a Status, and a warning for discovery, to clients of the Kubernetes API, so that
// kubectl shows it; a fault to all others.
func (h *Handler) writeError(w http.ResponseWriter, r *http.Request, err error) {
	verb, isKubernetes := kubernetesVerb(r)
	if !isKubernetes {
		fault.WriteHTTP(w, r, h.cfg.Logger, err)
		return
	}
	public := fault.Public(r.Context(), h.cfg.Logger, err)
	code := fault.HTTPStatus(public.Code)
	body, errMarshal := json.Marshal(status{
		Kind: "Status", APIVersion: "v1", Metadata: map[string]string{}, Status: "Failure", Message: public.Message,
		Reason: statusReasons[code], Code: code,
	})
	if errMarshal != nil {
		panic(errMarshal) // strings and numbers can be marshalled
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if verb == "" {
		// Clients do not read the body of a failed discovery. They print warnings (RFC 7234, section 5.5.7).
		w.Header().Set("Warning", "299 lockstep "+strconv.Quote(public.Message))
	}
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1") // Kubernetes' clients then try again on their own
	}
	w.WriteHeader(code)
	if _, errWrite := w.Write(append(body, '\n')); errWrite != nil {
		h.cfg.Logger.DebugContext(r.Context(), "the caller left before the error was sent", logkey.Error(errWrite))
	}
}

// kubernetesVerb reports whether a request is to the Kubernetes API, and returns its verb; empty for one that is not
// for a resource, such as discovery.
func kubernetesVerb(r *http.Request) (verb string, isKubernetes bool) {
	if p := requestOf(r.Context()); p != nil { // ReverseProxy has removed the prefix of the path
		return p.Verb, p.protocol == audit.Kubernetes
	}
	_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, agentsPath), "/")
	protocol, path, _ := strings.Cut(rest, "/")
	verb, _ = audit.Describe(r.Method, path, false)
	return verb, protocol == string(audit.Kubernetes)
}
