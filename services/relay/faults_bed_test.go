package relay_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/tunnel"
	"lockstep.internal/tools/testkit/natstest"
)

const tick = 10 * time.Millisecond

// childVariable has the test program be a relay, so that it can be killed.
const childVariable = "LOCKSTEP_TEST_RELAY"

// place is where a relay finds what it needs.
type place struct {
	NATS   string `json:"nats"`
	Seed   string `json:"seed"`
	Secret string `json:"secret"`
}

// child runs a relay that is told where things are, says on its output where it listens, and ends with its input.
func child(told string) {
	var at place
	if err := json.Unmarshal([]byte(told), &at); err != nil {
		panic(err)
	}
	cfg := near(at.NATS, at.Seed, at.Secret)
	cfg.Registry.Lease = brief
	cfg.OnReady = func(addrs map[string]string) {
		if err := json.NewEncoder(os.Stdout).Encode(addrs); err != nil {
			panic(err)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := relay.Main(ctx, cfg); err != nil {
		panic(err)
	}
}

// process is a relay in a process of its own.
type process struct {
	running

	command *exec.Cmd
	killed  sync.Once
}

// kill ends it without a word.
func (p *process) kill() {
	p.killed.Do(func() {
		_ = p.command.Process.Kill()
		_ = p.command.Wait()
	})
}

func (b *bed) process() *process {
	b.t.Helper()
	told, err := json.Marshal(place{NATS: b.server.ClientURL(), Seed: natsauth.SeedFile(b.dir, natsauth.PrincipalRelay), Secret: b.secret()})
	require.NoError(b.t, err)
	self, err := os.Executable()
	require.NoError(b.t, err)
	p := &process{command: exec.Command(self)}
	p.command.Env = append(os.Environ(), childVariable+"="+string(told))
	_, err = p.command.StdinPipe() // it ends with this process
	require.NoError(b.t, err)
	out, err := p.command.StdoutPipe()
	require.NoError(b.t, err)
	var failure bytes.Buffer
	p.command.Stderr = &failure
	require.NoError(b.t, p.command.Start())
	b.t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(b.t, err, "the relay has ended: %s", &failure)
	require.NoError(b.t, json.Unmarshal(line, &p.addrs))
	return p
}

// wall is a TCP proxy: it lets everything through, nothing, or breaks what there is.
type wall struct {
	t    *testing.T
	addr string

	mu    sync.Mutex
	open  *sync.Cond
	to    string
	shut  bool
	conns map[net.Conn]struct{}
}

func newWall(t *testing.T, to string) *wall {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wall{t: t, addr: l.Addr().String(), to: to, conns: map[net.Conn]struct{}{}}
	w.open = sync.NewCond(&w.mu)
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			passing.Go(func() { w.pass(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.leadTo("")
		w.freeze(false)
		w.cut()
		passing.Wait()
	})
	return w
}

func (w *wall) pass(conn net.Conn) {
	defer conn.Close()
	w.mu.Lock()
	to := w.to
	w.mu.Unlock()
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	w.mu.Lock()
	w.conns[conn], w.conns[far] = struct{}{}, struct{}{}
	w.mu.Unlock()
	var other sync.WaitGroup
	other.Go(func() { w.carry(far, conn) })
	w.carry(conn, far)
	other.Wait()
	w.mu.Lock()
	delete(w.conns, conn)
	delete(w.conns, far)
	w.mu.Unlock()
}

func (w *wall) carry(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		w.mu.Lock()
		for w.shut {
			w.open.Wait()
		}
		w.mu.Unlock()
		if _, errWrite := to.Write(buffer[:n]); err != nil || errWrite != nil {
			return
		}
	}
}

// freeze has nothing pass, without a word to anybody, or again everything.
func (w *wall) freeze(shut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shut = shut
	w.open.Broadcast()
}

// cut breaks all that passes.
func (w *wall) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn := range w.conns {
		_ = conn.Close()
	}
}

// leadTo somewhere else, whoever comes from now on.
func (w *wall) leadTo(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = addr
}

func (w *wall) running() *running { return &running{addrs: map[string]string{"agents": w.addr}} }

// sold counts what shops were able to send of what is large.
var sold atomic.Int64

// large answers with so many bytes.
func large(w http.ResponseWriter, r *http.Request, size int) {
	if r.URL.Query().Get("length") != "" {
		w.Header().Set("Content-Length", strconv.Itoa(size))
	}
	buffer := make([]byte, 32<<10)
	for size > 0 {
		n, err := w.Write(buffer[:min(size, len(buffer))])
		sold.Add(int64(n))
		if size -= n; err != nil {
			return
		}
	}
}

// puppet is as much of an agent as relays need to see. It answers HTTP with the agent's id and the path.
func (b *bed) puppet(ctx context.Context, addr string, id int) (*tunnel.Session, error) {
	header := http.Header{}
	header.Set("Authorization", "Bearer "+b.token)
	header.Set(agentlistener.HeaderAgent, strconv.Itoa(id))
	c, err := tunnel.Dialer{NoProxy: true}.Dial(ctx, "ws://"+addr+"/tunnel", header)
	if err != nil {
		return nil, err
	}
	s := tunnel.NewSession(c.Conn, true, false, tunnel.Config{Window: 64 << 10}, func(s *tunnel.Stream) { perform(s, id) })
	go func() { _ = s.Serve() }()
	st, err := s.Open([]byte(agentlistener.ConfigStreamHead))
	if err == nil {
		_, err = st.Read(make([]byte, 1))
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func perform(s *tunnel.Stream, id int) {
	defer s.Close()
	_ = s.Accept()
	requests := bufio.NewReader(s)
	for {
		r, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		said := fmt.Sprintf("%d %s", id, r.URL.Path)
		if _, err := fmt.Fprintf(s, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(said), said); err != nil {
			return
		}
	}
}

// connectPuppet waits until the relay knows the agent.
func (b *bed) connectPuppet(addr string, id int) *tunnel.Session {
	b.t.Helper()
	var s *tunnel.Session
	require.Eventually(b.t, func() bool {
		var err error
		s, err = b.puppet(b.t.Context(), addr, id)
		return err == nil
	}, soon, tick)
	b.t.Cleanup(func() { _ = s.Close() })
	return s
}

// shows waits until a relay shows this of itself.
func (b *bed) shows(r *running, lines ...string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		for _, line := range lines {
			if !b.metric(r, line) {
				return false
			}
		}
		return true
	}, soon, tick, "%v", lines)
}

// everything that the stream AGENTS has of a type.
func everything[T any](b *bed, kind string) []T {
	b.t.Helper()
	js := b.as(natsauth.PrincipalOperator)
	consumer, err := js.OrderedConsumer(b.t.Context(), topology.StreamAgents, jetstream.OrderedConsumerConfig{})
	require.NoError(b.t, err)
	info, err := consumer.Info(b.t.Context())
	require.NoError(b.t, err)
	messages, err := consumer.Messages()
	require.NoError(b.t, err)
	defer messages.Stop()
	var found []T
	for range info.NumPending {
		m, err := messages.Next(jetstream.NextContext(natstest.Context(b.t)))
		require.NoError(b.t, err)
		e, err := event.Decode(m.Headers(), m.Data())
		require.NoError(b.t, err)
		if e.Type() == kind {
			var data T
			require.NoError(b.t, json.Unmarshal(e.Data(), &data))
			found = append(found, data)
		}
	}
	return found
}

// connectionOf is that of the pod with this name.
func (b *bed) connectionOf(pod string) string {
	b.t.Helper()
	var id string
	b.events(events.TypeAgentConnected, func(data []byte) bool {
		var c events.AgentConnected
		require.NoError(b.t, json.Unmarshal(data, &c))
		if c.PodName == pod {
			id = c.ConnectionID
		}
		return id != ""
	})
	return id
}

// usage is what the process uses.
type usage struct {
	goroutines int
	heap       uint64
}

func measure() usage {
	runtime.GC()
	runtime.GC() // what pools keep survives the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{len(goroutines()), m.HeapAlloc}
}

// goroutines are where each of them is, but those of NATS, which come and go.
func goroutines() []string {
	text := make([]byte, 16<<20)
	text = text[:runtime.Stack(text, true)]
	return slices.DeleteFunc(strings.Split(string(text), "\n\n"), func(stack string) bool { return strings.Contains(stack, "github.com/nats-io/") })
}

// requireNoMore waits until the process uses no more than before. A few goroutines come and go with the test's own requests.
func (before usage) requireNoMore(t *testing.T) {
	t.Helper()
	const someGoroutines, someHeap = 6, 24 << 20
	now := measure()
	for end := time.Now().Add(soon); now.goroutines > before.goroutines+someGoroutines || now.heap > before.heap+someHeap; now = measure() {
		if time.Now().After(end) {
			require.FailNow(t, "more than before", "it was %+v, and is %+v:\n%s", before, now, strings.Join(goroutines(), "\n\n"))
		}
	}
	t.Logf("before: %d goroutines, %d KiB; after: %d, %d KiB", before.goroutines, before.heap>>10, now.goroutines, now.heap>>10)
}

// usual is what the process uses once each relay has had requests for an agent at the first, and the agent is gone: tunnels between relays stay.
func (b *bed) usual(first *running, others ...*running) usage {
	b.t.Helper()
	replica := b.replica(first)
	for _, r := range append(others, first) {
		b.shows(r, "lockstep_relay_known_connections 1")
		for range 8 {
			conn, _, response := b.connect(r, developer, "shop") // each is a stream of its own
			require.Equal(b.t, http.StatusSwitchingProtocols, response.StatusCode)
			require.NoError(b.t, conn.Close())
		}
	}
	replica.stop()
	for _, r := range append(others, first) {
		b.shows(r, "lockstep_relay_known_connections 0", "lockstep_relay_requests 0")
	}
	return measure()
}

// get asks for a path of the agent's shop.
func (b *bed) get(r *running, agent int, path string, header ...string) (int, string) {
	b.t.Helper()
	request := b.request(r, developer, http.MethodGet, fmt.Sprintf("/agents/%d/http/shop%s", agent, path), "")
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	status, body := b.ask(request)
	return status, strings.TrimSpace(body)
}
