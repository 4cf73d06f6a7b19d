package service

import (
	"bufio"
	"container/list"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxWrite is how much of a response a client must read within write_timeout, in bytes.
	maxWrite = 64 << 10
	// errorTimeout is the time that a client has to read an error. Clients get errors without authentication.
	errorTimeout = 10 * time.Second
	// resetTimeout is the time that a response has to end after it was aborted. Then its connection is closed.
	resetTimeout = 5 * time.Second
)

// requestLimits bounds the requests in progress, and the memory of responses that clients do not read.
type requestLimits struct {
	cfg     Listener
	refused func(reason string)

	mu       sync.Mutex
	open     int
	refusing int                  // refused requests in progress
	hosts    map[netip.Prefix]int // requests in progress, refused or not, of each host; the zero prefix is this machine
	// writing holds each *response that is being written and was not cut. The first has made no progress for the
	// longest time.
	writing list.List
	unread  int64 // bytes of writing
	cut     int64 // bytes of responses that were cut and have not ended
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
		release, decision := l.add(host, remote)
		defer release()
		handler := next
		if decision != admit {
			l.refused(refusedRequests)
			handler = refusal
		}
		if decision == reset {
			panic(http.ErrAbortHandler)
		}
		limited := &response{
			ResponseWriter: w, control: http.NewResponseController(w), conn: connOf(r.Context()), limits: l,
			release: release, timeout: l.cfg.WriteTimeout,
		}
		handler.ServeHTTP(limited, r)
		limited.finish(r.ProtoMajor)
	})
}

var refusal = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
})

// admission is what happens to a request.
type admission int

const (
	admit admission = iota
	refuse
	reset
)

// add counts a request until release is called, which may be called twice. A refused request counts only for its host,
// so that it takes no place from others.
func (l *requestLimits) add(host netip.Prefix, remote bool) (release func(), decision admission) {
	perHost := l.cfg.MaxHTTPRequests
	if remote {
		perHost = l.cfg.MaxHTTPRequestsPerHost
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts[host]++
	var count *int
	switch {
	case l.hosts[host] <= perHost && l.open < l.cfg.MaxHTTPRequests:
		count, decision = &l.open, admit
	case l.hosts[host] <= 2*perHost && l.refusing < l.cfg.MaxHTTPRequests:
		count, decision = &l.refusing, refuse
	default:
		count, decision = new(int), reset
	}
	*count++
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		*count--
		if l.hosts[host]--; l.hosts[host] == 0 {
			delete(l.hosts, host)
		}
	}), decision
}

// response aborts itself when the client reads nothing for write_timeout. If the responses that wait for their clients
// exceed max_responses, those are cut first that have waited longest.
type response struct {
	http.ResponseWriter

	control *http.ResponseController
	conn    net.Conn
	limits  *requestLimits
	release func()

	// Owned by the handler.
	timeout  time.Duration
	hijacked bool

	// Guarded by limits.mu.
	element *list.Element // of limits.writing; nil while nothing is written, and after the response was cut
	bytes   int64         // that wait to be written
	cut     bool          // bytes count in limits.cut

	mu      sync.Mutex  // held by abort
	timer   *time.Timer // runs abort
	blocked bool        // a write is in progress
	aborted bool

	closeNow atomic.Bool // abort closes the connection at once
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
		if err := w.begin(len(data) - written); err != nil {
			return written, err
		}
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
	if err := w.begin(0); err != nil {
		return err
	}
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
// An aborted response ends with an error, so that the client does not take it for a whole one.
func (w *response) finish(protocol int) {
	w.mu.Lock()
	aborted := w.aborted
	w.mu.Unlock()
	switch {
	case w.hijacked:
	case aborted:
		panic(http.ErrAbortHandler)
	case protocol == 1:
		_ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) // fails when the connection is closed
	default:
		_ = w.FlushError() // fails when the stream is closed
	}
}

// begin starts the timeout of a write, unless the response is aborted. bytes is what the handler wants to write.
func (w *response) begin(bytes int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.aborted {
		return os.ErrDeadlineExceeded
	}
	w.blocked = true
	if w.timer == nil {
		w.timer = time.AfterFunc(w.timeout, w.abort)
	} else {
		w.timer.Reset(w.timeout)
	}
	w.limits.count(w, int64(bytes))
	return nil
}

// end stops the timeout.
func (w *response) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blocked = false
	w.timer.Stop()
	w.limits.mu.Lock()
	defer w.limits.mu.Unlock()
	w.limits.remove(w)
}

// abort ends the write in progress with an error, and the response with it. HTTP/2 sends a reset for that, which waits
// for a client that does not read its connection. Called again, abort closes the connection.
func (w *response) abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.blocked:
	case w.aborted || w.closeNow.Load():
		w.aborted = true
		_ = w.conn.Close() // fails when it is closed
	default:
		w.aborted = true
		w.timer.Reset(resetTimeout)
		_ = w.control.SetWriteDeadline(time.Unix(1, 0)) // fails when the connection is closed
	}
}

// count counts the bytes of a response until it is removed. It cuts the responses that have waited longest while those
// that wait exceed max_responses. If those that were cut do, too, their connections do not send resets: it closes them.
func (l *requestLimits) count(w *response, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(w)
	w.closeNow.Store(false)
	w.element, w.bytes = l.writing.PushBack(w), bytes
	l.unread += bytes
	if l.cfg.MaxResponses == 0 {
		return
	}
	for l.unread > int64(l.cfg.MaxResponses) {
		oldest := l.writing.Front().Value.(*response) //nolint:errcheck,forcetypeassert // the list has nothing else
		if oldest == w {
			return // a response that is alone may be larger
		}
		size := oldest.bytes
		l.remove(oldest)
		oldest.bytes, oldest.cut = size, true
		l.cut += size
		l.refused(refusedResponses)
		oldest.closeNow.Store(l.cut > int64(l.cfg.MaxResponses))
		oldest.timer.Reset(0)
	}
}

// remove is called with the mutex held.
func (l *requestLimits) remove(w *response) {
	switch {
	case w.cut:
		l.cut -= w.bytes
	case w.element != nil:
		l.writing.Remove(w.element)
		l.unread -= w.bytes
	}
	w.element, w.bytes, w.cut = nil, 0, false
}
