package kube

import (
	"context"
	"net"
	"sync"

	"lockstep.internal/services/relay/tunnel"
)

// stream is a connection of the server.
type stream struct {
	*tunnel.Stream

	leaving <-chan struct{}
	cancel  context.CancelFunc // of what is asked over it
	over    func()
	once    sync.Once
}

// Close gives it back.
func (s *stream) Close() error {
	err := s.Stream.Close()
	s.once.Do(func() {
		s.cancel()
		s.over()
	})
	return err
}

// streams is the listener that the server has them from.
type streams struct {
	taken  chan *stream
	closed chan struct{}
	once   sync.Once
}

func newStreams() *streams {
	return &streams{taken: make(chan *stream), closed: make(chan struct{})}
}

// put hands a stream to the server; false when there is none any more.
func (l *streams) put(s *stream) bool {
	select {
	case l.taken <- s:
		return true
	case <-l.closed:
		return false
	}
}

func (l *streams) Accept() (net.Conn, error) {
	select {
	case s := <-l.taken:
		return s, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *streams) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr is of no use to anybody.
func (l *streams) Addr() net.Addr { return &net.UnixAddr{Name: "streams", Net: "unix"} }
