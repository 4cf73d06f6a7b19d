package e2e_test

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

// gate stands between a client of NATS and its server. It passes everything on until the client says something that it was told to stop at; then nothing
// that the client says goes through any more, while it still hears the server, until the gate is opened.
type gate struct {
	to       string
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	open  map[net.Conn]bool
	stops func(message []byte) stop
	held  chan struct{} // closed when it stops
	pass  chan struct{} // closed when it is opened
}

// stop is where a gate stops.
type stop int

const (
	goOn stop = iota
	stopBefore
	stopAfter
)

// newGate makes a gate to the server of a URL; it is open.
func newGate(t *testing.T, server string) *gate {
	t.Helper()
	to, err := url.Parse(server)
	require.NoError(t, err)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{to: to.Host, listener: listener, open: map[net.Conn]bool{}}
	g.arm(func([]byte) stop { return goOn })
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

// through gives the path of credentials that lead an agent through the gate.
func (g *gate) through(t *testing.T, credentialsFile string) string {
	t.Helper()
	credentials, err := natsauth.ReadAgentCredentials(credentialsFile)
	require.NoError(t, err)
	credentials.ServerURLs = []string{"nats://" + g.listener.Addr().String()}
	file := filepath.Join(t.TempDir(), "credentials.json")
	require.NoError(t, natsauth.WriteAgentCredentials(file, credentials))
	return file
}

// arm has the gate stop once, at the first message that stops tells. The channel is closed when it does.
func (g *gate) arm(stops func(message []byte) stop) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stops, g.held, g.pass = stops, make(chan struct{}), make(chan struct{})
	return g.held
}

// release opens the gate for good, until it is armed again.
func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stops = func([]byte) stop { return goOn }
	select {
	case <-g.pass:
	default:
		close(g.pass)
	}
}

func (g *gate) accept() {
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
			g.say(server, client)
			_, _ = client.Close(), server.Close()
		})
	}
}

func copyAndClose(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_, _ = to.Close(), from.Close()
}

// say passes on what the client says, message by message.
func (g *gate) say(server io.Writer, client io.Reader) {
	reader := bufio.NewReader(client)
	for {
		message, err := readMessage(reader)
		if err != nil {
			return
		}
		g.mu.Lock()
		where, held, pass := g.stops(message), g.held, g.pass
		if where != goOn {
			g.stops = func([]byte) stop { return goOn }
		}
		g.mu.Unlock()
		if where == stopBefore {
			close(held)
			<-pass
		}
		if _, err := server.Write(message); err != nil {
			return
		}
		if where == stopAfter {
			close(held)
			<-pass
		}
	}
}

// readMessage reads one message of the client protocol of NATS: a line, and for what is published its payload.
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

// natsOf is where credentials lead.
func natsOf(t *testing.T, credentialsFile string) string {
	t.Helper()
	credentials, err := natsauth.ReadAgentCredentials(credentialsFile)
	require.NoError(t, err)
	return credentials.ServerURLs[0]
}
