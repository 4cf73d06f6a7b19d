package proxy

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"

	"lockstep.internal/libs/fault"
	"lockstep.internal/services/relay/audit"
)

// status is what clients of the Kubernetes API understand as an error (https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/).
type status struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"` //nolint:tagliatelle // Kubernetes' own
	Metadata   map[string]string `json:"metadata"`
	Status     string            `json:"status"`
	Message    string            `json:"message"`
	Reason     string            `json:"reason,omitempty"`
	Code       int               `json:"code"`
}

// reasonOf is Kubernetes' word for what the status of an answer says.
func reasonOf(code int) string {
	return map[int]string{
		http.StatusBadRequest: "BadRequest", http.StatusUnauthorized: "Unauthorized", http.StatusForbidden: "Forbidden", http.StatusNotFound: "NotFound", http.StatusConflict: "Conflict",
		http.StatusTooManyRequests: "TooManyRequests", http.StatusInternalServerError: "InternalError", http.StatusServiceUnavailable: "ServiceUnavailable",
		http.StatusGatewayTimeout: "Timeout",
	}[code]
}

// answer says why a request is not carried: as a Status to clients of the Kubernetes API, so that kubectl shows it, and as a fault to all others.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, err error) {
	if !asksKubernetes(r.URL.Path) {
		fault.WriteHTTP(w, r, h.cfg.Logger, err)
		return
	}
	known := fault.Public(r.Context(), h.cfg.Logger, err)
	code := fault.HTTPStatus(known.Code)
	body, errMarshal := json.Marshal(status{
		Kind: "Status", APIVersion: "v1", Metadata: map[string]string{}, Status: "Failure", Message: known.Message, Reason: reasonOf(code), Code: code,
	})
	if errMarshal != nil {
		panic(errMarshal) // texts and numbers have no other outcome
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	if _, errWrite := w.Write(append(body, '\n')); errWrite != nil {
		h.cfg.Logger.DebugContext(r.Context(), "the caller left before it read why", slog.Any("error", errWrite))
	}
}

// asksKubernetes says whether a path is below /agents/<agent>/kubernetes.
func asksKubernetes(path string) bool {
	_, rest, _ := strings.Cut(strings.TrimPrefix(path, root), "/")
	kind, _, _ := strings.Cut(rest, "/")
	return kind == string(audit.Kubernetes)
}
