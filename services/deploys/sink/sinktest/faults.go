// Package sinktest contains the shared fixtures of the tests of sinks: network faults, rate limits and threads in
// memory.
package sinktest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// Fault replaces the normal response to one request.
type Fault func(w http.ResponseWriter, r *http.Request, serve http.Handler)

// Faults wraps a handler. It applies each fault to one matching request, in place of the handler.
type Faults struct {
	mu    sync.Mutex
	queue []queued
}

type queued struct {
	matches func(*http.Request) bool
	fault   Fault
}

// Next applies the faults to the next requests.
func (f *Faults) Next(faults ...Fault) {
	f.Matching(func(*http.Request) bool { return true }, faults...)
}

// Writes applies the faults to the next write requests.
func (f *Faults) Writes(faults ...Fault) {
	f.Matching(func(r *http.Request) bool { return r.Method != http.MethodGet }, faults...)
}

// Matching applies the faults to the next matching requests.
func (f *Faults) Matching(matches func(*http.Request) bool, faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range faults {
		f.queue = append(f.queue, queued{matches, fault})
	}
}

// Clear removes the faults that were not applied yet.
func (f *Faults) Clear() {
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

// Wrap returns a handler that applies the faults.
func (f *Faults) Wrap(serve http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Read the whole body, so that the client has sent the complete request before the fault.
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

// Status returns a fault that responds without calling the handler.
func Status(code int, header http.Header, body string) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		for name, values := range header {
			w.Header()[http.CanonicalHeaderKey(name)] = values
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// Drop returns a fault that closes the connection without calling the handler.
func Drop() Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { closeConnection(w) }
}

// DropResponse returns a fault that calls the handler and closes the connection without a response.
func DropResponse() Fault {
	return func(w http.ResponseWriter, r *http.Request, serve http.Handler) {
		serve.ServeHTTP(httptest.NewRecorder(), r)
		closeConnection(w)
	}
}

// TruncateResponse returns a fault that calls the handler, sends a part of the response and closes the connection.
func TruncateResponse() Fault {
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

// Hang returns a fault that sends no response until the client gives up. If effect is true, it calls the handler.
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

func closeConnection(w http.ResponseWriter) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		return
	}
	if conn, _, err := hijacker.Hijack(); err == nil {
		_ = conn.Close()
	}
}
