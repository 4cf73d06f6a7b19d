package service

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// maxCompression is how many times larger a body may be after gzip decompressed it.
const maxCompression = 1032

// bodyLimits bounds the bodies of requests that handlers read into memory.
type bodyLimits struct {
	cfg     Listener
	refused func(reason string)
	used    atomic.Int64 // bytes of all bodies
}

// handler limits the body of each request to max_body, its time to body_timeout, and the sum of all to max_bodies.
// A byte counts from when next reads it until next returns.
func (l *bodyLimits) handler(next http.Handler) http.Handler {
	if l.cfg.MaxBody == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		b := &limitedBody{
			ReadCloser: http.MaxBytesReader(w, r.Body, int64(l.cfg.MaxBody)),
			limits:     l, control: http.NewResponseController(w), factor: 1,
		}
		if isCompressed(r.Header) {
			b.factor = maxCompression
		}
		_ = b.control.SetReadDeadline(time.Now().Add(l.cfg.BodyTimeout)) // fails when the connection is closed
		defer b.release()
		limited := *r // the server looks at the body of its own request
		limited.Body = b
		next.ServeHTTP(w, &limited)
	})
}

// isCompressed reports whether a body, or messages in it, are compressed.
func isCompressed(header http.Header) bool {
	for _, name := range []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"} {
		if encoding := header.Get(name); encoding != "" && encoding != "identity" {
			return true
		}
	}
	return false
}

// limitedBody is a body that counts toward the limits.
type limitedBody struct {
	io.ReadCloser

	limits  *bodyLimits
	control *http.ResponseController
	// factor is how much memory a byte may take.
	factor int64

	mu       sync.Mutex
	counted  int64
	released bool
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case !b.count(int64(n)):
		b.limits.refused(refusedBodies)
		return 0, fault.ToConnect(fault.New(errcode.ResourceExhausted,
			"the bodies of all requests exceed max_bodies, %s: try again", b.limits.cfg.MaxBodies))
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.limits.refused(refusedBodyTimeout)
		err = fault.ToConnect(fault.New(errcode.DeadlineExceeded,
			"the body of the request did not arrive within %s", b.limits.cfg.BodyTimeout))
	case errors.Is(err, io.EOF):
		// A connection of HTTP/1 is read on, to notice that the client disconnects.
		_ = b.control.SetReadDeadline(time.Time{}) // fails when the connection is closed
	}
	return n, err
}

// count reports whether n more bytes are within max_bodies.
func (b *limitedBody) count(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// A handler refuses a message that is larger than max_body after decompression.
	more := min(n*b.factor, int64(b.limits.cfg.MaxBody)-b.counted)
	if b.released || more <= 0 {
		return true
	}
	b.counted += more
	return b.limits.used.Add(more) <= int64(b.limits.cfg.MaxBodies)
}

func (b *limitedBody) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = true
	b.limits.used.Add(-b.counted)
}
