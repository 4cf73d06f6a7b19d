// Package sinktest has what the tests of sinks share: faults of a network, and threads in memory.
package sinktest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// Fault is what happens to one request instead of a proper answer.
type Fault func(w http.ResponseWriter, r *http.Request, serve http.Handler)

// Faults happen to the next requests that they match, one each, before the handler within sees
// them.
type Faults struct {
	mu    sync.Mutex
	queue []queued
}

type queued struct {
	matches func(*http.Request) bool
	fault   Fault
}

// Next makes the faults happen to the next requests, whatever they are.
func (f *Faults) Next(faults ...Fault) {
	f.Matching(func(*http.Request) bool { return true }, faults...)
}

// Writes makes the faults happen to the next requests that write.
func (f *Faults) Writes(faults ...Fault) {
	f.Matching(func(r *http.Request) bool { return r.Method != http.MethodGet }, faults...)
}

// Matching makes the faults happen to the next requests that match.
func (f *Faults) Matching(matches func(*http.Request) bool, faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range faults {
		f.queue = append(f.queue, queued{matches, fault})
	}
}

// Over has those that have not happened yet not happen any more.
func (f *Faults) Over() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = nil
}

func (f *Faults) take(r *http.Request) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, q := range f.queue {
		if q.matches(r) {
			f.queue = append(f.queue[:i:i], f.queue[i+1:]...)
			return q.fault
		}
	}
	return nil
}

// Around is the handler with the faults before it.
func (f *Faults) Around(serve http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The body is taken whole, so that a fault meets a client that has sent all of it.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if fault := f.take(r); fault != nil {
			fault(w, r, serve)
			return
		}
		serve.ServeHTTP(w, r)
	})
}

// Status answers so, without any effect.
func Status(code int, header http.Header, body string) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		for name, values := range header {
			w.Header()[http.CanonicalHeaderKey(name)] = values
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// Drop closes the connection before there is an effect.
func Drop() Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { cut(w) }
}

// LoseAnswer closes the connection after the effect.
func LoseAnswer() Fault {
	return func(w http.ResponseWriter, r *http.Request, serve http.Handler) {
		serve.ServeHTTP(httptest.NewRecorder(), r)
		cut(w)
	}
}

// HalfAnswer sends half of the answer after the effect, and closes the connection.
func HalfAnswer() Fault {
	return func(w http.ResponseWriter, r *http.Request, serve http.Handler) {
		recorder := httptest.NewRecorder()
		serve.ServeHTTP(recorder, r)
		hijacker, ok := w.(http.Hijacker)
		if !ok {
			return
		}
		conn, _, err := hijacker.Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4096\r\n\r\n{\"o")
		_ = conn.Close()
	}
}

// Hang has the effect and never answers: until the client gives up.
func Hang(effect bool) Fault {
	return func(_ http.ResponseWriter, r *http.Request, serve http.Handler) {
		if effect {
			serve.ServeHTTP(httptest.NewRecorder(), r)
		}
		select {
		case <-r.Context().Done():
		case <-time.After(time.Minute):
		}
	}
}

func cut(w http.ResponseWriter) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		return
	}
	if conn, _, err := hijacker.Hijack(); err == nil {
		_ = conn.Close()
	}
}
