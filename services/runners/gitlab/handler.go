package gitlab

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/wire"
)

// DefaultHold is how long a request for a job is held. Proxies often close a silent connection after a minute.
const DefaultHold = 50 * time.Second

// Config of the handler. All fields are required, unless they have a default.
type Config struct {
	Runners   Runners
	Queue     Queue
	Jobs      Jobs
	Artifacts Artifacts
	// Hold is how long a request for a job waits, less than ten minutes. Defaults to [DefaultHold].
	Hold time.Duration
	// BodyTimeout defaults to [DefaultBodyTimeout].
	BodyTimeout time.Duration
	// MaxTracePart in bytes. Defaults to [DefaultMaxTracePart].
	MaxTracePart int64
	// Draining ends waiting requests when it is closed. Defaults to the drain of the server of each request.
	Draining <-chan struct{}
	Logger   *slog.Logger
}

type handler struct{ cfg Config }

// NewHandler returns the handler of the paths that begin with /api/v4/.
func NewHandler(cfg Config) http.Handler {
	cfg.Hold = cmp.Or(cfg.Hold, DefaultHold)
	cfg.BodyTimeout = cmp.Or(cfg.BodyTimeout, DefaultBodyTimeout)
	cfg.MaxTracePart = cmp.Or(cfg.MaxTracePart, DefaultMaxTracePart)
	h := &handler{cfg}
	mux := http.NewServeMux()
	for pattern, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		"POST /user/runners":                       h.createRunner,
		"POST /runners":                            h.register,
		"DELETE /runners":                          h.deleteRunner,
		"DELETE /runners/managers":                 h.deleteManager,
		"POST /runners/verify":                     h.verify,
		"POST /runners/reset_authentication_token": h.resetToken,
		"GET /runners/router/discovery":            discovery,
		"POST /jobs/request":                       h.requestJob,
		"PUT /jobs/{id}":                           h.updateJob,
		"PATCH /jobs/{id}/trace":                   h.appendTrace,
		"GET /jobs/{id}/artifacts":                 h.downloadArtifact,
		"/":                                        notFound,
	} {
		mux.Handle(pattern, h.handle(serve, false))
	}
	mux.Handle("POST /jobs/{id}/artifacts", h.handle(h.uploadArtifact, true))
	return http.StripPrefix("/api/v4", mux)
}

// statusError is an error with a status that runners know, instead of that of its code.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

func withStatus(status int, err error) error { return &statusError{status, err} }

// retryAfter is the time in seconds after which a runner tries again what is not possible at the moment.
const retryAfter = "5"

// handle limits the time of the body and writes the error of a handler. streamed bodies take as long as they progress.
func (h *handler) handle(serve func(http.ResponseWriter, *http.Request) error, streamed bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := serve(w, h.timed(w, r, streamed))
		if err == nil {
			return
		}
		if fault.HTTPStatus(fault.CodeOf(err)) == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", retryAfter)
		}
		special, found := errors.AsType[*statusError](err)
		switch {
		case found:
			fault.WriteHTTPStatus(w, r, h.cfg.Logger, special.status, special.err)
		case fault.Is(err, errcode.Unauthenticated):
			// Runners know 403 only.
			fault.WriteHTTPStatus(w, r, h.cfg.Logger, http.StatusForbidden, err)
		default:
			fault.WriteHTTP(w, r, h.cfg.Logger, err)
		}
	})
}

// write writes an answer with JSON. Once a part of it is sent, a failure can only be logged.
func (h *handler) write(w http.ResponseWriter, r *http.Request, status int, body any) {
	if err := wire.WriteJSON(w, status, body); err != nil {
		h.cfg.Logger.DebugContext(r.Context(), "answer not written", logkey.Error(err))
	}
}

func notFound(_ http.ResponseWriter, r *http.Request) error {
	return fault.New(errcode.NotFound, "there is no %s %.200q here: the API is that of GitLab runners",
		r.Method, r.URL.Path)
}

// discovery answers that jobs do not come from another protocol.
func discovery(http.ResponseWriter, *http.Request) error {
	return fault.New(errcode.Unimplemented, "there is no job router here: request jobs with POST /api/v4/jobs/request")
}

// token returns the token in the header, or else that in the body, or else that in PRIVATE-TOKEN. The latter comes last
// because clients other than runners have the user's token there.
func token(r *http.Request, header, inBody string) (string, error) {
	found := cmp.Or(r.Header.Get(header), inBody, r.Header.Get(wire.HeaderPrivateToken))
	if found == "" {
		return "", fault.New(errcode.PermissionDenied, "the request has no token: send the header %s", header)
	}
	if len(found) > wire.MaxToken {
		return "", fault.New(errcode.PermissionDenied, "the token is longer than %d bytes", wire.MaxToken)
	}
	return found, nil
}

// jobRef returns the job of the path with the token of the request.
func jobRef(r *http.Request, inBody string) (JobRef, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || id <= 0 {
		return JobRef{}, fault.New(errcode.InvalidArgument, "the id of the job is not a positive integer")
	}
	text, err := token(r, wire.HeaderJobToken, inBody)
	return JobRef{ID: id, Token: text}, err
}

// setState sets the headers about a job.
func setState(w http.ResponseWriter, state JobState) {
	if state.Status != "" {
		w.Header().Set(wire.HeaderJobStatus, string(state.Status))
	}
	if state.Interval > 0 {
		w.Header().Set(wire.HeaderTraceInterval, wire.Interval(state.Interval))
	}
}

// jobError sets the headers about the job and returns the error. A job that is not known is refused: a runner ignores
// 404.
func jobError(w http.ResponseWriter, state JobState, err error) error {
	setState(w, state)
	if fault.Is(err, errcode.NotFound) {
		return withStatus(http.StatusForbidden, err)
	}
	return err
}

// holding returns a context that ends with the request, after the hold, or when the service drains.
func (h *handler) holding(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Hold)
	draining := cmp.Or(h.cfg.Draining, service.Draining(ctx))
	if draining == nil {
		return ctx, cancel
	}
	ctx, drained := context.WithCancel(ctx)
	stop := make(chan struct{})
	go func() {
		select {
		case <-draining:
			drained()
		case <-stop:
		}
	}()
	return ctx, func() { close(stop); drained(); cancel() }
}
