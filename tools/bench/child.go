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

// A service whose memory is measured is a process of its own: this program, started again under the name of the service. It answers questions on its
// standard output and ends when its standard input does, so that it never outlives who asked.

// childVariable names what the process is, profileVariable a file for its CPU profile.
const (
	childVariable   = "LOCKSTEP_BENCH_CHILD"
	profileVariable = "LOCKSTEP_BENCH_PROFILE"
)

// What children are.
const (
	childState    = "state"
	childWatcher  = "watcher"
	childDeploys  = "deploys"
	childInformer = "informer" // bare, what the watcher is measured beside

	childTarget    = "target"     // what relays lead to
	childRelay     = "relay"      // Lockstep's
	childAgent     = "agent"      // of a relay
	childFleet     = "fleet"      // many agents
	childPeerRelay = "peer-relay" // remotedialer's, beside which they are measured
	childPeerAgent = "peer-agent"
	childPeerFleet = "peer-fleet"
	childCopies    = "copies" // what only copies, beside which they are measured, too
)

// peerPrefix begins the names of those that run others' programs. These have data races, which are not ours to find.
const peerPrefix = "peer-"

// Questions to a child.
const (
	askHeap = "heap" // bytes after a garbage collection
	askHeld = "held" // the same, with the stacks of goroutines
	askPeak = "peak" // most memory that it has held, in bytes
)

// reply is what a child says: that it is ready and where it listens, or the answer to a question.
type reply struct {
	Ready map[string]string `json:"ready,omitempty"`
	Bytes uint64            `json:"bytes,omitempty"`
	// Began and Ended are when a fleet began to do what it was asked for, and when all of it had.
	Began time.Time `json:"began,omitzero"`
	Ended time.Time `json:"ended,omitzero"`
	Error string    `json:"error,omitempty"`
}

// serveAsChild runs what this process is started as; false when it is no child.
func serveAsChild() bool {
	name := os.Getenv(childVariable)
	if name == "" {
		return false
	}
	var mu sync.Mutex
	say := func(r reply) {
		mu.Lock()
		defer mu.Unlock()
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			fmt.Fprintln(os.Stderr, err) // who does not hear it has ended
		}
	}
	signals := make(chan os.Signal, 1)
	agents := newFleetOfAgents()
	go answer(os.Stdin, say, agents.answer, func() { signals <- syscall.SIGTERM })
	ready := func(addrs map[string]string) {
		if addrs == nil {
			addrs = map[string]string{"": ""}
		}
		say(reply{Ready: addrs})
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

// serve returns the status to end with.
func serve(name string, agents *fleetOfAgents, signals <-chan os.Signal, ready func(addrs map[string]string)) int {
	process := service.Process{Args: os.Args[1:], Environ: os.Environ(), Stdout: os.Stderr, Stderr: os.Stderr, Signals: signals, Exit: os.Exit}
	switch name {
	case childState:
		defaults := state.DefaultConfig()
		defaults.OnReady = ready
		return service.Execute(process, state.Program(), defaults, state.Main)
	case childWatcher:
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
	if err := serveBare(name, os.Args[1], agents, signals, ready); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serveBare runs what is no service; its argument is what the service's configuration would be.
func serveBare(name, argument string, agents *fleetOfAgents, signals <-chan os.Signal, ready func(addrs map[string]string)) error {
	switch name {
	case childInformer:
		return watchBare(argument, signals, func() { ready(nil) })
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
	return fmt.Errorf("there is no child %q", name)
}

// configured runs what is configured by an argument in JSON.
func configured[T any](argument string, signals <-chan os.Signal, ready func(map[string]string), serve func(T, <-chan os.Signal, func(map[string]string)) error) error {
	var cfg T
	if err := json.Unmarshal([]byte(argument), &cfg); err != nil {
		return fmt.Errorf("read the argument: %w", err)
	}
	return serve(cfg, signals, ready)
}

// answer answers questions until there are no more.
func answer(in io.Reader, say func(reply), others func(question string) reply, end func()) {
	defer end()
	questions := bufio.NewScanner(in)
	for questions.Scan() {
		switch questions.Text() {
		case askHeap, askHeld:
			// Twice: what has a finalizer is freed by the second.
			runtime.GC()
			debug.FreeOSMemory()
			var memory runtime.MemStats
			runtime.ReadMemStats(&memory)
			held := memory.HeapAlloc
			if questions.Text() == askHeld {
				held += memory.StackInuse
			}
			say(reply{Bytes: held})
		case askPeak:
			peak, err := peakMemory()
			r := reply{Bytes: peak}
			if err != nil {
				r.Error = err.Error()
			}
			say(r)
		default:
			go func(question string) { say(others(question)) }(questions.Text()) // who asks may end before it is answered
		}
	}
}

// child is a process that was started.
type child struct {
	name    string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	replies chan reply
	ended   chan struct{}
	err     error // of its end; read after ended
	log     string
	addrs   map[string]string
	once    sync.Once
}

const childPatience = 30 * time.Second

// start starts a child with its arguments, and returns when it is ready. It ends with the bed, if not earlier. What of its name follows a dot only tells it from others.
func (b *bed) start(ctx context.Context, dir, name string, args ...string) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	c := &child{name: name, cmd: exec.Command(program, args...), replies: make(chan reply), ended: make(chan struct{}), log: filepath.Join(dir, name+".log")} //nolint:gosec,noctx // this program again; its end is that of its input
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
	if b.profile != "" {
		c.cmd.Env = append(c.cmd.Env, profileVariable+"="+b.profile+"."+name)
	}
	c.cmd.Stderr = log
	// A Ctrl-C at the terminal is for this process, which ends the child.
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
	b.onClose(func(context.Context) error { return c.stop() })
	r, err := c.hear(ctx)
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

func (c *child) hear(ctx context.Context) (reply, error) {
	select {
	case r := <-c.replies:
		if r.Error != "" {
			return r, fmt.Errorf("%s: %s", c.name, r.Error)
		}
		return r, nil
	case <-c.ended:
		return reply{}, fmt.Errorf("%s: ended by itself: %w\n%s", c.name, errors.Join(c.err, errors.New("its log ends with")), c.tail())
	case <-ctx.Done():
		return reply{}, fmt.Errorf("%s: %w", c.name, context.Cause(ctx))
	}
}

// ask asks for a number of bytes.
func (c *child) ask(ctx context.Context, question string) (float64, error) {
	r, err := c.question(ctx, question)
	return float64(r.Bytes), err
}

func (c *child) question(ctx context.Context, question string) (reply, error) {
	if _, err := io.WriteString(c.stdin, question+"\n"); err != nil {
		return reply{}, fmt.Errorf("%s: ask for its %s: %w", c.name, question, err)
	}
	return c.hear(ctx)
}

// stop ends the child and waits for it. It may be called again.
func (c *child) stop() error {
	var err error
	c.once.Do(func() {
		err = c.stdin.Close()
		patience := time.NewTimer(childPatience)
		defer patience.Stop()
		for {
			select {
			case <-c.replies: // that nobody waits for
			case <-c.ended:
				if c.err != nil {
					err = errors.Join(err, fmt.Errorf("%s: %w\n%s", c.name, c.err, c.tail()))
				}
				return
			case <-patience.C:
				_ = c.cmd.Process.Kill()
				err = errors.Join(err, fmt.Errorf("%s: did not end and was killed", c.name))
			}
		}
	})
	return err
}

// tail is the end of its log.
func (c *child) tail() string {
	const lines = 10
	raw, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
