package gitlab

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// DefaultBodyTimeout is the time for the body of a request, or for the next part of an artifact.
const DefaultBodyTimeout = 30 * time.Second

// timedBody is a body that must arrive in time.
type timedBody struct {
	io.ReadCloser

	control *http.ResponseController
	timeout time.Duration
	// eachRead begins the time again with each read, for bodies that take long.
	eachRead bool
	begun    bool
}

// timed returns the request with a timed body.
func (h *handler) timed(w http.ResponseWriter, r *http.Request, eachRead bool) *http.Request {
	if r.Body == nil || r.Body == http.NoBody {
		return r
	}
	limited := *r // the server looks at the body of its own request
	limited.Body = &timedBody{
		ReadCloser: r.Body, control: http.NewResponseController(w), timeout: h.cfg.BodyTimeout, eachRead: eachRead,
	}
	return &limited
}

func (b *timedBody) Read(p []byte) (int, error) {
	if !b.begun || b.eachRead {
		b.begun = true
		b.set(time.Now().Add(b.timeout))
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		// The server reads on, to notice that the client disconnects while its request waits for a job.
		b.set(time.Time{})
	}
	return n, err //nolint:wrapcheck // an [io.Reader]
}

// set sets the deadline. It fails when the connection is closed, which the next read reports.
func (b *timedBody) set(deadline time.Time) { _ = b.control.SetReadDeadline(deadline) }
