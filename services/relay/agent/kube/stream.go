package kube

import (
	"context"
	"net"
	"sync"

	"lockstep.internal/services/relay/tunnel"
)

// stream is a connection of the HTTP server.
type stream struct {
	*tunnel.Stream

	draining <-chan struct{}
	cancel   context.CancelFunc // of its requests
	ended    func()
	once     sync.Once
}

// Close ends the stream and its requests.
func (s *stream) Close() error {
	err := s.Stream.Close()
	s.once.Do(func() {
		s.cancel()
		s.ended()
	})
	return err
}

// streamListener is the listener of the HTTP server.
type streamListener struct {
	accepted chan *stream
	closed   chan struct{}
	once     sync.Once
}

func newStreamListener() *streamListener {
	return &streamListener{accepted: make(chan *stream), closed: make(chan struct{})}
}

// put passes a stream to the server; false after Close.
func (l *streamListener) put(s *stream) bool {
	select {
	case l.accepted <- s:
		return true
	case <-l.closed:
		return false
	}
}

func (l *streamListener) Accept() (net.Conn, error) {
	select {
	case s := <-l.accepted:
		return s, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *streamListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr has no meaning.
func (l *streamListener) Addr() net.Addr { return &net.UnixAddr{Name: "streams", Net: "unix"} }
