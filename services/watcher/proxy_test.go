package watcher_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy forwards TCP connections. After cut it closes them and refuses new ones until restore.
type proxy struct {
	to       string
	listener net.Listener
	running  sync.WaitGroup

	mu   sync.Mutex
	down bool
	open map[net.Conn]bool
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	var listening net.ListenConfig
	listener, err := listening.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{to: to, listener: listener, open: make(map[net.Conn]bool)}
	p.running.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		p.cut()
		p.running.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.pass(from) })
	}
}

func (p *proxy) pass(from net.Conn) {
	var dialer net.Dialer
	to, err := dialer.Dial("tcp", p.to)
	if err != nil {
		_ = from.Close()
		return
	}
	if !p.keep(from, to) {
		return
	}
	var copying sync.WaitGroup
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		copying.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_, _ = pair[0].Close(), pair[1].Close()
		})
	}
	copying.Wait()
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.down {
			_ = c.Close()
		} else {
			p.open[c] = true
		}
	}
	return !p.down
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for c := range p.open {
		_ = c.Close()
	}
	clear(p.open)
}

func (p *proxy) restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}
