package fault

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
)

// maxBody bounds what FromHTTP reads of an error body, in bytes.
const maxBody = 64 << 10

// body is the JSON of a fault on plain HTTP endpoints.
type body struct {
	Code    Code              `json:"code"`
	Message string            `json:"message"`
	Details map[string]string `json:"details,omitempty"`
}

// MarshalJSON renders {code, message, details}; the cause stays out.
func (e *Error) MarshalJSON() ([]byte, error) {
	return json.Marshal(body{e.Code, e.Message, e.Details}) //nolint:wrapcheck // strings cannot fail
}

// Handler serves HTTP with a function that may fail. It writes the function's error with [WriteHTTP].
// The function must not have written anything when it fails.
func Handler(logger *slog.Logger, serve func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := serve(w, r); err != nil {
			WriteHTTP(w, r, logger, err)
		}
	})
}

// WriteHTTP answers a request with err: the status of its code and the JSON body
// {code, message, details}. Internal faults are logged with their reference.
func WriteHTTP(w http.ResponseWriter, r *http.Request, logger *slog.Logger, err error) {
	e := Public(r.Context(), logger, err)
	write(w, r, logger, lookup(e.Code).HTTP, e)
}

// WriteHTTPStatus is [WriteHTTP] with another status, for a contract of others that gives it a meaning. An internal
// fault keeps its own status.
func WriteHTTPStatus(w http.ResponseWriter, r *http.Request, logger *slog.Logger, status int, err error) {
	e := Public(r.Context(), logger, err)
	if e.Code == errcode.Internal {
		status = lookup(e.Code).HTTP
	}
	write(w, r, logger, status, e)
}

// write writes a public fault.
func write(w http.ResponseWriter, r *http.Request, logger *slog.Logger, status int, e *Error) {
	raw, marshalErr := json.Marshal(e)
	if marshalErr != nil {
		logger.ErrorContext(r.Context(), "fault not encoded", logkey.Error(marshalErr))
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Del("Content-Length")
	header.Del("Content-Encoding")
	header.Del("ETag")
	w.WriteHeader(status)
	if _, writeErr := w.Write(append(raw, '\n')); writeErr != nil {
		logger.DebugContext(r.Context(), "response not written: the client disconnected", logkey.Error(writeErr))
	}
}

// HTTPStatus returns the HTTP status of a code.
func HTTPStatus(code Code) int { return lookup(code).HTTP }

// FromHTTP returns the fault in a response, or nil below status 400. For other responses, such as a proxy's page,
// it maps the status to a code. It reads the body and does not close it.
func FromHTTP(response *http.Response) error {
	if response.StatusCode < http.StatusBadRequest {
		return nil
	}
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	var b body
	if err == nil && json.Unmarshal(raw, &b) == nil && known(b.Code) {
		return &Error{Code: b.Code, Message: b.Message, Details: b.Details}
	}
	return Wrap(err, codeOfStatus(response.StatusCode), "the server answered %d %s",
		response.StatusCode, http.StatusText(response.StatusCode))
}

func codeOfStatus(status int) Code {
	switch status {
	case http.StatusUnauthorized:
		return errcode.Unauthenticated
	case http.StatusForbidden:
		return errcode.PermissionDenied
	case http.StatusNotFound, http.StatusGone:
		return errcode.NotFound
	case http.StatusConflict:
		return errcode.Conflict
	case http.StatusPreconditionFailed, http.StatusPreconditionRequired:
		return errcode.FailedPrecondition
	case http.StatusRequestEntityTooLarge, http.StatusRequestHeaderFieldsTooLarge:
		return errcode.PayloadTooLarge
	case http.StatusTooManyRequests:
		return errcode.ResourceExhausted
	case http.StatusNotImplemented:
		return errcode.Unimplemented
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return errcode.Unavailable
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return errcode.DeadlineExceeded
	case 499:
		return errcode.Canceled
	}
	if status < http.StatusInternalServerError {
		return errcode.InvalidArgument
	}
	return errcode.Internal
}
