package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/gitlab"
)

const (
	tracePattern   = "GET /api/v4/jobs/{id}/trace"
	archivePattern = "GET /api/v4/projects/{project}/jobs/{id}/artifacts"

	eventStream = "text/event-stream"
	// tracePart is how much of a trace is read at once, in bytes.
	tracePart = 256 << 10
)

// Traces reads the output of jobs, with stars for masked values.
type Traces interface {
	// ReadTrace returns at most limit bytes from an offset on, and the size of the whole trace so far, which never
	// shrinks. Beyond the end there are no bytes.
	ReadTrace(ctx context.Context, jobID, offset int64, limit int) (part []byte, size int64, err error)
}

// Tail returns the handler of a path with {id} that follows the output of a job as server-sent events. authorize checks
// whether the request may read the output of a job.
type Tail func(authorize func(r *http.Request, jobID int64) error) http.Handler

// Archives has the artifacts of jobs.
type Archives interface {
	// Archive returns the archive of a job, or the fault not_found. A Location is one that every client can use.
	Archive(ctx context.Context, jobID int64) (gitlab.Download, error)
}

// fileHandler serves what is not a message of Connect.
type fileHandler struct {
	jobs     *jobService
	traces   Traces
	tail     Tail
	archives Archives
	streams  *streams
	logger   *slog.Logger
}

// trace serves the output of a job.
func (h *fileHandler) trace(w http.ResponseWriter, r *http.Request) error {
	authorize := func(r *http.Request, jobID int64) error {
		_, err := h.jobs.read(r.Context(), jobID)
		return err
	}
	if acceptsEvents(r) {
		return h.streams.serve(w, r, h.tail(authorize))
	}
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	if err := authorize(r, id); err != nil {
		return err
	}
	content := &traceReader{ctx: r.Context(), traces: h.traces, jobID: id}
	if err := content.open(); err != nil {
		return err
	}
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, content)
	return nil
}

// acceptsEvents reports whether a request asks for server-sent events.
func acceptsEvents(r *http.Request) bool {
	for _, value := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(value, ",") {
			if media, _, err := mime.ParseMediaType(part); err == nil && media == eventStream {
				return true
			}
		}
	}
	return false
}

func pathID(r *http.Request, name string) (int64, error) {
	id, err := strconv.ParseInt(r.PathValue(name), 10, 64)
	if err != nil || id <= 0 {
		return 0, fault.New(errcode.InvalidArgument, "%s: the path must have a positive id", name).With("field", name)
	}
	return id, nil
}

// archive serves the archive of a job.
func (h *fileHandler) archive(w http.ResponseWriter, r *http.Request) error {
	projectID, err := pathID(r, "project")
	if err != nil {
		return err
	}
	id, err := pathID(r, "id")
	if err != nil {
		return err
	}
	found, err := h.jobs.read(r.Context(), id)
	if err != nil {
		return err
	}
	if found.ProjectID != projectID {
		return notFound(jobName(id))
	}
	download, err := h.archives.Archive(r.Context(), id)
	if err != nil {
		return err
	}
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	if download.Location != "" {
		http.Redirect(w, r, download.Location, http.StatusFound)
		return nil
	}
	defer download.Content.Close() //nolint:errcheck // it was read
	header.Set("Content-Type", "application/octet-stream")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": download.Filename}))
	header.Set("Content-Length", strconv.FormatInt(download.Size, 10))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	if _, err := io.Copy(w, download.Content); err != nil && r.Context().Err() == nil {
		// The status was sent. A body that is too short tells the client.
		h.logger.WarnContext(r.Context(), "sending an artifact ended early", slog.Int64(logkey.JobID, id), logkey.Error(err))
	}
	return nil
}

// traceReader reads the part of a trace that exists when it is opened. It implements [io.ReadSeeker].
type traceReader struct {
	ctx    context.Context //nolint:containedctx // the reader lives as long as its request
	traces Traces
	jobID  int64

	size, offset int64
	// part of the trace from start on.
	part  []byte
	start int64
}

func (t *traceReader) open() error {
	var err error
	t.part, t.size, err = t.traces.ReadTrace(t.ctx, t.jobID, 0, tracePart)
	return err
}

func (t *traceReader) Read(into []byte) (int, error) {
	if t.offset >= t.size {
		return 0, io.EOF
	}
	if t.offset < t.start || t.offset >= t.start+int64(len(t.part)) {
		part, _, err := t.traces.ReadTrace(t.ctx, t.jobID, t.offset, tracePart)
		if err != nil {
			return 0, fmt.Errorf("read the trace of job %d: %w", t.jobID, err)
		}
		if len(part) == 0 {
			return 0, io.ErrUnexpectedEOF // it was deleted meanwhile
		}
		t.part, t.start = part, t.offset
	}
	available := t.part[t.offset-t.start:]
	available = available[:min(int64(len(available)), t.size-t.offset)]
	n := copy(into, available)
	t.offset += int64(n)
	return n, nil
}

func (t *traceReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += t.offset
	case io.SeekEnd:
		offset += t.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning of a trace")
	}
	t.offset = offset
	return offset, nil
}
