package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"lockstep.internal/libs/service"
	"lockstep.internal/services/deploys"
	"lockstep.internal/services/relay"
	"lockstep.internal/services/relay/agent"
	"lockstep.internal/services/state"
	"lockstep.internal/services/watcher"
)

// A child is a process of its own, so that its memory can be measured: this program, started again
// under the name of a service. It reads questions from standard input and answers on standard
// output. It exits at the end of its input, so it never outlives its parent.

// childVariable has the kind of the child, profileVariable a file for its CPU profile.
const (
	childVariable   = "LOCKSTEP_BENCH_CHILD"
	profileVariable = "LOCKSTEP_BENCH_PROFILE"
)

// Kinds of children.
const (
	childState    = "state"
	childWatcher  = "watcher"
	childDeploys  = "deploys"
	childInformer = "informer" // the baseline of the watcher
	childCluster  = "cluster"  // an API server

	childTarget    = "target"     // of requests through relays
	childRelay     = "relay"      // Lockstep's
	childAgent     = "agent"      // of a relay
	childFleet     = "fleet"      // many agents
	childPeerRelay = "peer-relay" // of remotedialer
	childPeerAgent = "peer-agent"
	childPeerFleet = "peer-fleet"
	childCopies    = "copies" // copies bytes: the physical limit
)

// peerPrefix begins the kinds that run other projects' code. Its data races do not fail a run.
const peerPrefix = "peer-"

// Questions to a child.
const (
	askHeap = "heap" // bytes after a garbage collection
	askHeld = "held" // the same and the stacks of goroutines
	askPeak = "peak" // peak resident memory, in bytes
)

// reply is a message of a child: its addresses when it is ready, or the answer to a question.
type reply struct {
	Ready map[string]string `json:"ready,omitempty"`
	Bytes uint64            `json:"bytes,omitempty"`
	// Began and Ended are the times of a request to a fleet.
	Began time.Time `json:"began,omitzero"`
	Ended time.Time `json:"ended,omitzero"`
	Error string    `json:"error,omitempty"`
}

// runAsChild runs this process as a child and exits. It returns false when the process is no child.
func runAsChild() bool {
	name := os.Getenv(childVariable)
	if name == "" {
		return false
	}
	var mu sync.Mutex
	send := func(r reply) {
		mu.Lock()
		defer mu.Unlock()
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			fmt.Fprintln(os.Stderr, err) // the parent has exited
		}
	}
	signals := make(chan os.Signal, 1)
	agents := newFleetOfAgents()
	go answer(os.Stdin, send, agents.answer, func() { signals <- syscall.SIGTERM })
	ready := func(addrs map[string]string) {
		if addrs == nil {
			addrs = map[string]string{"": ""}
		}
		send(reply{Ready: addrs})
	}
	status := 0
	if err := profiled(os.Getenv(profileVariable), func() error {
		status = serve(name, agents, signals, ready)
		return nil
	}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(status)
	return true
}

// serve runs a child and returns its exit status.
func serve(name string, agents *fleetOfAgents, signals <-chan os.Signal, ready func(addrs map[string]string)) int {
	process := service.Process{
		Args: os.Args[1:], Environ: os.Environ(), Stdout: os.Stderr, Stderr: os.Stderr, Signals: signals, Exit: os.Exit,
	}
	switch name {
	case childState:
		defaults := state.DefaultConfig()
		defaults.OnReady = ready
		return service.Execute(process, state.Program(), defaults, state.Main)
	case childWatcher:
		debug.SetGCPercent(watcher.GCPercent)
		defaults := watcher.DefaultConfig()
		defaults.OnReady = ready
		return service.Execute(process, watcher.Program(), defaults, watcher.Main)
	case childDeploys:
		defaults := deploys.DefaultConfig()
		defaults.OnReady = ready
		return service.Execute(process, deploys.Program(), defaults, deploys.Main)
	case childRelay:
		defaults := relay.DefaultConfig()
		defaults.OnReady = ready
		return service.Execute(process, relay.Program(), defaults, relay.Main)
	case childAgent:
		defaults := agent.DefaultConfig()
		defaults.OnReady = ready
		return service.Execute(process, agent.Program(), defaults, agent.Main)
	}
	if err := serveOther(name, os.Args[1], agents, signals, ready); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serveOther runs a child that is no service. Its argument is its configuration.
func serveOther(
	name, argument string, agents *fleetOfAgents, signals <-chan os.Signal, ready func(addrs map[string]string),
) error {
	switch name {
	case childInformer:
		return watchBare(argument, signals, func() { ready(nil) })
	case childCluster:
		return configured(argument, signals, ready, serveCluster)
	case childTarget:
		return configured(argument, signals, ready, serveTarget)
	case childCopies:
		return configured(argument, signals, ready, serveCopies)
	case childPeerRelay:
		return configured(argument, signals, ready, servePeerRelay)
	case childPeerAgent:
		return configured(argument, signals, ready, servePeerAgent)
	case childFleet, childPeerFleet:
		return configured(argument, signals, ready, agents.serve)
	}
	return fmt.Errorf("unknown child %q", name)
}

// configured runs a child with its argument parsed from JSON.
func configured[T any](
	argument string, signals <-chan os.Signal, ready func(map[string]string),
	serve func(T, <-chan os.Signal, func(map[string]string)) error,
) error {
	var cfg T
	if err := json.Unmarshal([]byte(argument), &cfg); err != nil {
		return fmt.Errorf("read the argument: %w", err)
	}
	return serve(cfg, signals, ready)
}

// answer answers questions until the end of the input.
func answer(in io.Reader, send func(reply), others func(question string) reply, end func()) {
	defer end()
	questions := bufio.NewScanner(in)
	for questions.Scan() {
		switch questions.Text() {
		case askHeap, askHeld:
			// The second collection frees objects with finalizers.
			runtime.GC()
			debug.FreeOSMemory()
			var memory runtime.MemStats
			runtime.ReadMemStats(&memory)
			held := memory.HeapAlloc
			if questions.Text() == askHeld {
				held += memory.StackInuse
			}
			send(reply{Bytes: held})
		case askPeak:
			peak, err := peakMemory()
			r := reply{Bytes: peak}
			if err != nil {
				r.Error = err.Error()
			}
			send(r)
		default:
			go func(question string) { send(others(question)) }(questions.Text()) // it may take long
		}
	}
}

// child is a started process.
type child struct {
	name    string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	replies chan reply
	ended   chan struct{}
	err     error // of its exit; read after ended
	log     string
	addrs   map[string]string
	once    sync.Once
}

// childTimeout is the longest time until a child exits.
const childTimeout = 30 * time.Second

// start starts a child and returns when it is ready. It stops with the fixture at the latest. The
// part of the name after a dot distinguishes children of one kind.
func (f *fixture) start(ctx context.Context, dir, name string, args ...string) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	c := &child{
		name: name, replies: make(chan reply), ended: make(chan struct{}), log: filepath.Join(dir, name+".log"),
		cmd: exec.Command(program, args...), //nolint:gosec,noctx // this program; it exits at the end of its input
	}
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of the %s: %w", name, err)
	}
	defer log.Close() //nolint:errcheck // the child has its own
	kind, _, _ := strings.Cut(name, ".")
	c.cmd.Env = append(os.Environ(), childVariable+"="+kind)
	if strings.HasPrefix(kind, peerPrefix) {
		c.cmd.Env = append(c.cmd.Env, "GORACE=exitcode=0")
	}
	if f.profile != "" {
		c.cmd.Env = append(c.cmd.Env, profileVariable+"="+f.profile+"."+name)
	}
	c.cmd.Stderr = log
	// Ctrl-C at the terminal signals this process only, which stops the child.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := c.cmd.StdoutPipe()
	if err == nil {
		c.stdin, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", name, err)
	}
	go c.listen(stdout)
	f.onClose(func(context.Context) error { return c.stop() })
	r, err := c.receive(ctx)
	c.addrs = r.Ready
	return c, err
}

func (c *child) listen(from io.Reader) {
	defer close(c.ended)
	decoder := json.NewDecoder(from)
	for {
		var r reply
		if decoder.Decode(&r) != nil {
			break
		}
		c.replies <- r
	}
	c.err = c.cmd.Wait()
}

func (c *child) receive(ctx context.Context) (reply, error) {
	select {
	case r := <-c.replies:
		if r.Error != "" {
			return r, fmt.Errorf("%s: %s", c.name, r.Error)
		}
		return r, nil
	case <-c.ended:
		return reply{}, errors.Join(fmt.Errorf("%s exited; the end of its log:\n%s", c.name, c.tail()), c.err)
	case <-ctx.Done():
		return reply{}, fmt.Errorf("%s: %w", c.name, context.Cause(ctx))
	}
}

// ask sends a question that is answered with a number of bytes.
func (c *child) ask(ctx context.Context, question string) (float64, error) {
	r, err := c.question(ctx, question)
	return float64(r.Bytes), err
}

// question sends a question and waits for the reply.
func (c *child) question(ctx context.Context, question string) (reply, error) {
	if _, err := io.WriteString(c.stdin, question+"\n"); err != nil {
		return reply{}, fmt.Errorf("%s: ask for its %s: %w", c.name, question, err)
	}
	return c.receive(ctx)
}

// stop stops the child and waits for its exit. Further calls do nothing.
func (c *child) stop() error {
	var err error
	c.once.Do(func() {
		err = c.stdin.Close()
		timeout := time.NewTimer(childTimeout)
		defer timeout.Stop()
		for {
			select {
			case <-c.replies: // late
			case <-c.ended:
				if c.err != nil {
					err = errors.Join(err, fmt.Errorf("%s: %w\n%s", c.name, c.err, c.tail()))
				}
				return
			case <-timeout.C:
				_ = c.cmd.Process.Kill()
				err = errors.Join(err, fmt.Errorf("%s did not exit within %s", c.name, childTimeout))
			}
		}
	})
	return err
}

// tail returns the end of the log.
func (c *child) tail() string {
	const lines = 10
	raw, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
