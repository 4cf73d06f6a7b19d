package recovery_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
)

// natsProxy forwards between a NATS client and its server. Armed, it holds the client's messages
// from a chosen one on, until it is released, or loses that one. The server's messages are always forwarded.
type natsProxy struct {
	to       string
	listener net.Listener
	running  sync.WaitGroup

	mu       sync.Mutex
	open     map[net.Conn]bool
	hold     func(message []byte) proxyAction
	held     chan struct{} // closed when a message is held or lost
	released chan struct{} // closed by release
}

// proxyAction is what the proxy does with a message.
type proxyAction int

const (
	forward proxyAction = iota
	holdBefore
	holdAfter
	drop // loses one message
)

// newNATSProxy starts a proxy to the server of a URL. It forwards everything.
func newNATSProxy(t testing.TB, server string) *natsProxy {
	t.Helper()
	to, err := url.Parse(server)
	require.NoError(t, err)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &natsProxy{to: to.Host, listener: listener, open: map[net.Conn]bool{}}
	g.arm(func([]byte) proxyAction { return forward })
	g.running.Go(g.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		g.release()
		g.mu.Lock()
		for conn := range g.open {
			_ = conn.Close()
		}
		g.mu.Unlock()
		g.running.Wait()
	})
	return g
}

// url is the address of the proxy.
func (g *natsProxy) url() string { return "nats://" + g.listener.Addr().String() }

// credentialsThrough writes credentials with the address of the proxy and returns their path.
func (g *natsProxy) credentialsThrough(t testing.TB, credentialsFile string) string {
	t.Helper()
	credentials, err := natsauth.ReadAgentCredentials(credentialsFile)
	require.NoError(t, err)
	credentials.ServerURLs = []string{g.url()}
	file := filepath.Join(t.TempDir(), "credentials.json")
	require.NoError(t, natsauth.WriteAgentCredentials(file, credentials))
	return file
}

// arm holds the client's messages from the first one for which hold returns holdBefore or holdAfter, or loses the
// first one for which it returns drop. The returned channel is closed then.
func (g *natsProxy) arm(hold func(message []byte) proxyAction) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold, g.held, g.released = hold, make(chan struct{}), make(chan struct{})
	return g.held
}

// release forwards everything again until the next arm.
func (g *natsProxy) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold = func([]byte) proxyAction { return forward }
	select {
	case <-g.released:
	default:
		close(g.released)
	}
}

func (g *natsProxy) accept() {
	for {
		client, err := g.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", g.to)
		if err != nil {
			_ = client.Close()
			continue
		}
		g.mu.Lock()
		g.open[client], g.open[server] = true, true
		g.mu.Unlock()
		g.running.Go(func() { copyAndClose(client, server) })
		g.running.Go(func() {
			g.forwardMessages(server, client)
			_, _ = client.Close(), server.Close()
		})
	}
}

func copyAndClose(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = to.Close(), from.Close()
}

// forwardMessages forwards messages of the client one by one, and holds them as armed.
func (g *natsProxy) forwardMessages(server io.Writer, client io.Reader) {
	reader := bufio.NewReader(client)
	for {
		message, err := readMessage(reader)
		if err != nil {
			return
		}
		g.mu.Lock()
		action, held, released := g.hold(message), g.held, g.released
		if action != forward {
			g.hold = func([]byte) proxyAction { return forward }
		}
		g.mu.Unlock()
		switch action {
		case forward, holdAfter:
		case holdBefore:
			close(held)
			<-released
		case drop:
			close(held)
			continue
		}
		if _, err := server.Write(message); err != nil {
			return
		}
		if action == holdAfter {
			close(held)
			<-released
		}
	}
}

// readMessage reads one message of the NATS client protocol: a line and, for a publication, its
// payload.
func readMessage(reader *bufio.Reader) ([]byte, error) {
	line, err := reader.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	fields := bytes.Fields(line)
	if len(fields) == 0 || !bytes.Equal(fields[0], []byte("PUB")) && !bytes.Equal(fields[0], []byte("HPUB")) {
		return line, nil
	}
	size, err := strconv.Atoi(string(fields[len(fields)-1]))
	if err != nil {
		return nil, err
	}
	const lineBreak = 2
	payload := make([]byte, size+lineBreak)
	if _, err := io.ReadFull(reader, payload); err != nil {
		return nil, err
	}
	return append(line, payload...), nil
}

// natsAddress returns the server address of credentials.
func natsAddress(t testing.TB, credentialsFile string) string {
	t.Helper()
	credentials, err := natsauth.ReadAgentCredentials(credentialsFile)
	require.NoError(t, err)
	return credentials.ServerURLs[0]
}
