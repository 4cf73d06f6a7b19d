package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// link is a TCP proxy between a service and what it connects to. While it is cut, it forwards nothing and opens no
// connection, like a network that drops all packets.
type link struct {
	to       string
	listener net.Listener
	done     chan struct{}
	running  sync.WaitGroup

	mu      sync.Mutex
	whole   chan struct{} // closed while it forwards
	open    map[net.Conn]bool
	stopped bool
}

// newLink starts a link that forwards to an address.
func newLink(ctx context.Context, to string) (*link, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a link to %s: %w", to, err)
	}
	l := &link{
		to: to, listener: listener, done: make(chan struct{}), whole: make(chan struct{}), open: map[net.Conn]bool{},
	}
	close(l.whole)
	l.running.Go(l.accept)
	return l, nil
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.whole = make(chan struct{})
}

func (l *link) restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.whole)
}

// close ends all connections.
func (l *link) close() error {
	close(l.done)
	err := l.listener.Close()
	l.mu.Lock()
	l.stopped = true
	for conn := range l.open {
		_ = conn.Close() // only its goroutines use it
	}
	l.mu.Unlock()
	l.running.Wait()
	if err != nil {
		return fmt.Errorf("close the link to %s: %w", l.to, err)
	}
	return nil
}

func (l *link) accept() {
	for {
		from, err := l.listener.Accept()
		if err != nil {
			return
		}
		if l.track(from) {
			l.running.Go(func() { l.forward(from) })
		}
	}
}

// track remembers a connection until close. After it, it closes the connection and returns false.
func (l *link) track(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		_ = conn.Close() // nobody uses it
		return false
	}
	l.open[conn] = true
	return true
}

func (l *link) drop(conn net.Conn) {
	l.mu.Lock()
	delete(l.open, conn)
	l.mu.Unlock()
	_ = conn.Close() // the other side may have closed it
}

func (l *link) forward(from net.Conn) {
	defer l.drop(from)
	if l.await() != nil {
		return
	}
	to, err := net.Dial("tcp", l.to) //nolint:noctx // loopback
	if err != nil || !l.track(to) {
		return
	}
	defer l.drop(to)
	var copying sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		copying.Go(func() {
			_, _ = io.Copy(gate{l, way[1]}, way[0]) // the end of either direction ends the connection
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	copying.Wait()
}

var errLinkClosed = errors.New("the link is closed")

// await waits until the link forwards.
func (l *link) await() error {
	l.mu.Lock()
	whole := l.whole
	l.mu.Unlock()
	select {
	case <-whole:
		return nil
	case <-l.done:
		return errLinkClosed
	}
}

// gate writes while the link forwards.
type gate struct {
	link *link
	to   io.Writer
}

func (g gate) Write(data []byte) (int, error) {
	if err := g.link.await(); err != nil {
		return 0, err
	}
	return g.to.Write(data) //nolint:wrapcheck // ends the connection
}
