package service

import (
	"bufio"
	"container/list"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxWrite is how much of a response a client must read within write_timeout, in bytes.
	maxWrite = 64 << 10
	// errorTimeout is the time that a client has to read an error. Clients get errors without authentication.
	errorTimeout = 10 * time.Second
)

// requestLimits bounds the requests in progress, and the memory of responses that clients do not read.
type requestLimits struct {
	cfg     Listener
	refused func(reason string)

	mu    sync.Mutex
	open  int
	hosts map[netip.Prefix]int
	// writing holds each *response that is being written, the one without progress for the longest time first.
	writing list.List
	unread  int64 // bytes of writing
}

func limitRequests(cfg Listener, refused func(reason string)) *requestLimits {
	return &requestLimits{cfg: cfg, refused: refused, hosts: map[netip.Prefix]int{}}
}

// handler counts a request until its response is written. It refuses requests above max_http_requests with 503.
//
// A body of HTTP/2 needs a window that the client grants, so a refusal has none. Its headers wait, too, if the client
// does not read its connection: above twice the limit, the stream is reset.
func (l *requestLimits) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, remote := hostOf(r.RemoteAddr)
		release, share := l.add(host, remote)
		defer release()
		switch {
		case share > 2:
			l.refused(refusedRequests)
			panic(http.ErrAbortHandler)
		case share > 1:
			l.refused(refusedRequests)
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = http.NewResponseController(w).Flush() // fails when the connection is closed
		default:
			limited := &response{
				ResponseWriter: w, control: http.NewResponseController(w), limits: l, release: release,
				timeout: l.cfg.WriteTimeout,
			}
			next.ServeHTTP(limited, r)
			limited.finish(r.ProtoMajor)
		}
	})
}

// add counts a request until release is called, which may be called twice. It returns how much of its limit is used, 1
// is all of it: of all requests or of those of the host, whichever is more.
func (l *requestLimits) add(host netip.Prefix, remote bool) (release func(), share float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	share = float64(l.open) / float64(l.cfg.MaxHTTPRequests)
	if remote {
		l.hosts[host]++
		share = max(share, float64(l.hosts[host])/float64(l.cfg.MaxHTTPRequestsPerHost))
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		if !remote {
			return
		}
		if l.hosts[host]--; l.hosts[host] == 0 {
			delete(l.hosts, host)
		}
	}), share
}

// response aborts itself when the client reads nothing for write_timeout, or when it has waited for its client the
// longest and the responses that wait exceed max_responses.
type response struct {
	http.ResponseWriter

	control *http.ResponseController
	limits  *requestLimits
	release func()

	// Owned by the handler.
	timeout  time.Duration
	hijacked bool

	// Guarded by limits.mu.
	element *list.Element // nil while nothing is written
	bytes   int64         // that wait to be written

	timer   *time.Timer // runs abort
	mu      sync.Mutex  // held by abort
	blocked bool        // guarded by mu: a write is in progress
}

// Unwrap is for [http.ResponseController].
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader shortens the timeout of an error.
func (w *response) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		w.timeout = min(w.timeout, errorTimeout)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write writes the data in parts, so that a slow client makes progress within the timeout.
func (w *response) Write(data []byte) (int, error) {
	defer w.end()
	written := 0
	for {
		part := data[written:min(len(data), written+maxWrite)]
		w.begin(len(data) - written)
		n, err := w.ResponseWriter.Write(part)
		if written += n; err != nil || written >= len(data) {
			return written, err //nolint:wrapcheck // callers compare it
		}
	}
}

// Flush implements [http.Flusher].
func (w *response) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController].
func (w *response) FlushError() error {
	w.begin(0)
	defer w.end()
	return w.control.Flush() //nolint:wrapcheck // callers compare it
}

// Hijack implements [http.Hijacker]. The request no longer counts.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := w.control.Hijack()
	if err == nil {
		w.hijacked = true
		w.release()
	}
	return conn, buffered, err //nolint:wrapcheck // callers compare it
}

// finish writes what the server still buffers. HTTP/1 does so after the handler, within a deadline that it then clears.
func (w *response) finish(protocol int) {
	switch {
	case w.hijacked:
	case protocol == 1:
		_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) // fails when the connection is closed
	default:
		_ = w.FlushError() // fails when the stream is closed
	}
}

// begin starts the timeout of a write. bytes is what the handler wants to write.
func (w *response) begin(bytes int) {
	w.mu.Lock()
	w.blocked = true
	w.mu.Unlock()
	if w.timer == nil {
		w.timer = time.AfterFunc(w.timeout, w.abort)
	} else {
		w.timer.Reset(w.timeout)
	}
	l := w.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.element == nil {
		w.element = l.writing.PushBack(w)
	} else {
		l.writing.MoveToBack(w.element)
	}
	l.unread += int64(bytes) - w.bytes
	w.bytes = int64(bytes)
	if l.cfg.MaxResponses == 0 {
		return
	}
	for l.unread > int64(l.cfg.MaxResponses) {
		oldest := l.writing.Front().Value.(*response) //nolint:errcheck,forcetypeassert // the list has nothing else
		if oldest == w {
			return // a response that is alone may be larger
		}
		l.remove(oldest)
		l.refused(refusedResponses)
		oldest.timer.Reset(0)
	}
}

// end stops the timeout.
func (w *response) end() {
	w.timer.Stop()
	w.mu.Lock()
	w.blocked = false
	w.mu.Unlock()
	w.limits.mu.Lock()
	defer w.limits.mu.Unlock()
	w.limits.remove(w)
}

// remove is called with the mutex held.
func (l *requestLimits) remove(w *response) {
	if w.element == nil {
		return
	}
	l.writing.Remove(w.element)
	l.unread -= w.bytes
	w.element, w.bytes = nil, 0
}

// abort ends the write in progress with an error, and the response with it.
func (w *response) abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blocked {
		_ = w.control.SetWriteDeadline(time.Unix(1, 0)) // fails when the connection is closed
	}
}
