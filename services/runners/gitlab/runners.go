package gitlab

import (
	"errors"
	"io"
	"net/http"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/wire"
)

func (h *handler) createRunner(w http.ResponseWriter, r *http.Request) error {
	user, err := token(r, wire.HeaderPrivateToken, "")
	if err != nil {
		return err
	}
	var request wire.CreateRunnerRequest
	if err := wire.Decode(w, r, &request); err != nil {
		return err
	}
	runner, err := h.cfg.Runners.Create(r.Context(), user, request)
	if err != nil {
		return err
	}
	h.write(w, r, http.StatusCreated, runner)
	return nil
}

func (h *handler) register(w http.ResponseWriter, r *http.Request) error {
	var request wire.RegisterRequest
	if err := wire.Decode(w, r, &request); err != nil {
		return err
	}
	runner, err := h.cfg.Runners.Register(r.Context(), request)
	switch {
	case errors.Is(err, ErrRegistrationOff):
		return withStatus(http.StatusGone, fault.Wrap(err, errcode.Unimplemented,
			"registration tokens are off: create the runner as a user and use its token (glrt-…)"))
	case err != nil:
		return err
	}
	h.write(w, r, http.StatusCreated, runner)
	return nil
}

func (h *handler) verify(w http.ResponseWriter, r *http.Request) error {
	request, err := runnerRequest(w, r)
	if err != nil {
		return err
	}
	runner, err := h.cfg.Runners.Verify(r.Context(), request.Token, request.SystemID)
	if err != nil {
		return err
	}
	h.write(w, r, http.StatusOK, runner)
	return nil
}

func (h *handler) resetToken(w http.ResponseWriter, r *http.Request) error {
	request, err := runnerRequest(w, r)
	if err != nil {
		return err
	}
	reset, err := h.cfg.Runners.ResetToken(r.Context(), request.Token)
	if err != nil {
		return err
	}
	h.write(w, r, http.StatusCreated, reset)
	return nil
}

func (h *handler) deleteRunner(w http.ResponseWriter, r *http.Request) error {
	request, err := runnerRequest(w, r)
	if err != nil {
		return err
	}
	if err := h.cfg.Runners.Delete(r.Context(), request.Token); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *handler) deleteManager(w http.ResponseWriter, r *http.Request) error {
	request, err := runnerRequest(w, r)
	if err != nil {
		return err
	}
	if err := h.cfg.Runners.DeleteManager(r.Context(), request.Token, request.SystemID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// runnerRequest reads a request about the runner itself. Some clients send no body with DELETE, but a query.
func runnerRequest(w http.ResponseWriter, r *http.Request) (wire.RunnerRequest, error) {
	var request wire.RunnerRequest
	if r.Method == http.MethodDelete && r.ContentLength == 0 {
		query := r.URL.Query()
		request = wire.RunnerRequest{Token: query.Get("token"), SystemID: query.Get("system_id")}
		if err := request.Validate(); err != nil {
			return request, err
		}
	} else if err := wire.Decode(w, r, &request); err != nil {
		return request, err
	}
	var err error
	request.Token, err = token(r, wire.HeaderRunnerToken, request.Token)
	return request, err
}

func (h *handler) requestJob(w http.ResponseWriter, r *http.Request) error {
	var request wire.JobRequest
	if err := wire.Decode(w, r, &request); err != nil {
		return err
	}
	var err error
	if request.Token, err = token(r, wire.HeaderRunnerToken, request.Token); err != nil {
		return err
	}
	ctx, cancel := h.holding(r.Context())
	defer cancel()
	job, lastUpdate, err := h.cfg.Queue.Request(ctx, request)
	if err != nil {
		return err
	}
	if lastUpdate != "" {
		w.Header().Set(wire.HeaderLastUpdate, lastUpdate)
	}
	if job == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	h.write(w, r, http.StatusCreated, job)
	return nil
}

// clientReader remembers an error of the client's connection, to tell it from one of the store.
type clientReader struct {
	reader io.Reader
	err    error
}

func (c *clientReader) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err //nolint:wrapcheck // an [io.Reader]
}
