package relay_test

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// faultProxy is a TCP proxy that can forward, stall or close connections.
type faultProxy struct {
	t    *testing.T
	addr string

	mu      sync.Mutex
	changed *sync.Cond
	target  string
	stalled bool
	conns   map[net.Conn]struct{}
}

func newFaultProxy(t *testing.T, target string) *faultProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &faultProxy{t: t, addr: l.Addr().String(), target: target, conns: map[net.Conn]struct{}{}}
	p.changed = sync.NewCond(&p.mu)
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			forwarding.Go(func() { p.forward(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.setTarget("")
		p.stall(false)
		p.closeAll()
		forwarding.Wait()
	})
	return p
}

func (p *faultProxy) forward(conn net.Conn) {
	defer conn.Close()
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	upstream, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer upstream.Close()
	p.mu.Lock()
	p.conns[conn], p.conns[upstream] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var reverse sync.WaitGroup
	reverse.Go(func() { p.copy(upstream, conn) })
	p.copy(conn, upstream)
	reverse.Wait()
	p.mu.Lock()
	delete(p.conns, conn)
	delete(p.conns, upstream)
	p.mu.Unlock()
}

func (p *faultProxy) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		for p.stalled {
			p.changed.Wait()
		}
		p.mu.Unlock()
		if _, errWrite := to.Write(buffer[:n]); err != nil || errWrite != nil {
			return
		}
	}
}

// stall stops or resumes forwarding; connections stay open.
func (p *faultProxy) stall(stalled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = stalled
	p.changed.Broadcast()
}

// closeAll closes all connections.
func (p *faultProxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// setTarget changes the target of new connections.
func (p *faultProxy) setTarget(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = addr
}

func (p *faultProxy) running() *running { return &running{addrs: map[string]string{"agents": p.addr}} }
