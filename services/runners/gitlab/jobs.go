package gitlab

import (
	"errors"
	"io"
	"net/http"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/trace"
	"lockstep.internal/services/runners/wire"
)

// DefaultMaxTracePart is the size of the largest part of a trace in one request, in bytes: that of a whole trace.
const DefaultMaxTracePart = trace.DefaultLimit

func (h *handler) updateJob(w http.ResponseWriter, r *http.Request) error {
	var request wire.UpdateRequest
	if err := wire.Decode(w, r, &request); err != nil {
		return err
	}
	ref, err := jobRef(r, request.Token)
	if err != nil {
		return err
	}
	result, state, err := h.cfg.Jobs.Update(r.Context(), ref, request)
	if err != nil {
		return jobError(w, state, err)
	}
	setState(w, state)
	switch result {
	case ResendTrace:
		return withStatus(http.StatusPreconditionFailed, fault.New(errcode.FailedPrecondition,
			"the trace of job %d differs from the reported checksum: send all of it again", ref.ID))
	case AskAgain:
		w.WriteHeader(http.StatusAccepted)
	case Stored:
		w.WriteHeader(http.StatusOK)
	}
	return nil
}

func (h *handler) appendTrace(w http.ResponseWriter, r *http.Request) error {
	ref, err := jobRef(r, "")
	if err != nil {
		return err
	}
	part, err := wire.ParseContentRange(r.Header.Get(wire.HeaderContentRange))
	if err != nil {
		return err
	}
	data, err := h.readTracePart(w, r, ref, part)
	if err != nil {
		return err
	}
	size, state, err := h.cfg.Jobs.AppendTrace(r.Context(), ref, part.Start, data)
	if outOfRange, found := errors.AsType[*trace.RangeError](err); found {
		setState(w, state)
		w.Header().Set(wire.HeaderRange, wire.StoredRange(outOfRange.Size))
		return withStatus(http.StatusRequestedRangeNotSatisfiable,
			fault.Wrap(err, errcode.FailedPrecondition, "%s", outOfRange.Error()))
	}
	switch {
	case errors.Is(err, trace.ErrTooLarge):
		err = withStatus(http.StatusForbidden, fault.Wrap(err, errcode.PayloadTooLarge,
			"the trace of job %d exceeds its limit", ref.ID))
	case errors.Is(err, trace.ErrEnded):
		err = fault.Wrap(err, errcode.PermissionDenied, "the trace of job %d has ended", ref.ID)
	}
	if err != nil {
		return jobError(w, state, err)
	}
	setState(w, state)
	w.Header().Set(wire.HeaderRange, wire.StoredRange(size))
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// readTracePart reads the body of a request that the runner of a job sends. A body is small, so that the token is only
// authenticated before it is read: its append checks everything. An answer without an append has the state of the job.
func (h *handler) readTracePart(
	w http.ResponseWriter, r *http.Request, ref JobRef, part wire.ContentRange,
) ([]byte, error) {
	if err := h.cfg.Jobs.Authentic(r.Context(), ref); err != nil {
		return nil, jobError(w, JobState{}, err)
	}
	var refused error
	var data []byte
	if part.Size() > h.cfg.MaxTracePart {
		refused = withStatus(http.StatusForbidden, fault.New(errcode.PayloadTooLarge,
			"the part of the trace has more than %d bytes", h.cfg.MaxTracePart))
	} else {
		var err error
		data, err = io.ReadAll(http.MaxBytesReader(w, r.Body, part.Size()))
		_, tooLarge := errors.AsType[*http.MaxBytesError](err)
		switch {
		case tooLarge, err == nil && int64(len(data)) != part.Size():
			refused = fault.New(errcode.InvalidArgument,
				"the body has another size than the %d bytes of the header Content-Range %s", part.Size(), part)
		case err != nil:
			refused = fault.Wrap(err, errcode.InvalidArgument, "the body is not complete: send the part again")
		}
	}
	if refused == nil {
		return data, nil
	}
	state, err := h.cfg.Jobs.Authorize(r.Context(), ref, jobtoken.ScopeTrace)
	if err != nil {
		return nil, jobError(w, state, err)
	}
	setState(w, state)
	return nil, refused
}
