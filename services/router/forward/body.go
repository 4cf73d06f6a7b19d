package forward

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"lockstep.internal/services/router/route"
)

// errEnded is the error of a body that is read after its request has ended.
var errEnded = errors.New("the request has ended")

// body is the body of a request. Each part of it must arrive in time.
type body struct {
	io.ReadCloser

	control *http.ResponseController
	timeout time.Duration

	mu sync.Mutex
	// until is the deadline of the start of the body; zero behind it.
	until time.Time
	// complete: its end was read. stopped: its request has ended.
	complete, stopped bool
	err               error // other than io.EOF
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	if err := b.begin(); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end(err)
	}
	return n, err //nolint:wrapcheck // an [io.Reader]
}

// begin starts the time for one read.
func (b *body) begin() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.complete {
		return io.EOF
	}
	if b.stopped {
		return errEnded
	}
	deadline := b.until
	if deadline.IsZero() {
		deadline = time.Now().Add(b.timeout)
	}
	b.setDeadline(deadline)
	return nil
}

func (b *body) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(err, io.EOF) {
		b.complete = true
	} else if !b.stopped {
		b.err = err
	}
	if !b.stopped {
		// The server reads on, to notice that the client disconnects.
		b.setDeadline(time.Time{})
	}
}

// stop ends a read in progress, which would block the end of the request.
func (b *body) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if !b.complete {
		b.setDeadline(time.Unix(1, 0))
	}
}

// setDeadline fails when the connection is closed, which the next read reports.
func (b *body) setDeadline(deadline time.Time) { _ = b.control.SetReadDeadline(deadline) }

// pending reports whether the client may still send. Then its connection serves no other request.
func (b *body) pending() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.complete
}

// failure returns the error of reading it.
func (b *body) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// start reads at most [route.MaxBody] bytes within the timeout.
func (b *body) start(timeout time.Duration) ([]byte, error) {
	b.setUntil(time.Now().Add(timeout))
	defer b.setUntil(time.Time{})
	return io.ReadAll(io.LimitReader(b, route.MaxBody)) //nolint:wrapcheck // mapped by the caller
}

func (b *body) setUntil(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = until
}

// whole is a body with its start, which was read already.
type whole struct {
	start *bytes.Reader // nil once it was sent
	rest  *body
}

// Read implements [io.Reader].
func (w *whole) Read(p []byte) (int, error) {
	if w.start != nil {
		if n, err := w.start.Read(p); err == nil {
			return n, nil
		}
		w.start = nil
	}
	return w.rest.Read(p)
}

// Close implements [io.Closer].
func (w *whole) Close() error { return w.rest.Close() } //nolint:wrapcheck // an [io.Closer]
