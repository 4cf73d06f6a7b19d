package forward

import (
	"encoding/json"
	"net/http"
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

// writeError responds with an error: a Status to clients of the Kubernetes API, so that kubectl shows it, and a
// fault to all others.
func (h *Handler) writeError(w http.ResponseWriter, r *http.Request, err error) {
	if !isKubernetesPath(r.URL.Path) {
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
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1") // Kubernetes' clients then try again on their own
	}
	w.WriteHeader(code)
	if _, errWrite := w.Write(append(body, '\n')); errWrite != nil {
		h.cfg.Logger.DebugContext(r.Context(), "the caller left before the error was sent", logkey.Error(errWrite))
	}
}

// isKubernetesPath reports whether a path is below /agents/<agent>/kubernetes.
func isKubernetesPath(path string) bool {
	_, rest, _ := strings.Cut(strings.TrimPrefix(path, agentsPath), "/")
	kind, _, _ := strings.Cut(rest, "/")
	return kind == string(audit.Kubernetes)
}
