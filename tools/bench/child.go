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

// A child is a process of its own, so that its memory can be measured: this program, started again under the name of a
// service. It answers each line of its standard input with its memory, on standard output. It exits at the end of its
// input, so it never outlives its parent.

// childVariable has the kind of the child, profileVariable a file for its CPU profile.
const (
	childVariable   = "LOCKSTEP_BENCH_CHILD"
	profileVariable = "LOCKSTEP_BENCH_PROFILE"
)

// Kinds of children.
const (
	childState     = "state"
	childWatcher   = "watcher"
	childDeploys   = "deploys"
	childInformer  = "informer" // the baseline of the watcher
	childCluster   = "cluster"  // an API server
	childRelay     = "relay"
	childAgent     = "agent"      // of a relay
	childTarget    = "target"     // of requests through relays
	childPeerRelay = "peer-relay" // of remotedialer
	childPeerAgent = "peer-agent"
	childCopies    = "copies" // copies bytes: the physical limit
)

// peerPrefix begins the kinds that run other projects' code. Its data races do not fail a run.
const peerPrefix = "peer-"

// reply is a message of a child: its addresses when it is ready, or its memory in bytes.
type reply struct {
	Ready map[string]string `json:"ready,omitempty"`
	// Heap is the heap after a garbage collection.
	Heap uint64 `json:"heap,omitempty"`
	// Peak is the peak of the resident memory of the process.
	Peak  uint64 `json:"peak,omitempty"`
	Error string `json:"error,omitempty"`
}

// readyFunc reports that a child is ready at these addresses.
type readyFunc func(addresses map[string]string)

// runAsChild runs this process as a child and exits. It returns false when the process is no child.
func runAsChild() bool {
	kind := os.Getenv(childVariable)
	if kind == "" {
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
	go func() {
		defer func() { signals <- syscall.SIGTERM }()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			send(memory())
		}
	}()
	status := 0
	if err := profiled(os.Getenv(profileVariable), func() error {
		status = runChild(kind, signals, func(addresses map[string]string) {
			if addresses == nil {
				addresses = map[string]string{"": ""}
			}
			send(reply{Ready: addresses})
		})
		return nil
	}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(status)
	return true
}

// memory returns the memory of this process.
func memory() reply {
	peak, err := peakMemory()
	if err != nil {
		return reply{Error: err.Error()}
	}
	runtime.GC()
	debug.FreeOSMemory() // the second collection frees objects with finalizers
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return reply{Heap: stats.HeapAlloc, Peak: peak}
}

// runChild runs a child and returns its exit status.
func runChild(kind string, signals chan os.Signal, ready readyFunc) int {
	process := service.Process{
		Args: os.Args[1:], Environ: os.Environ(), Stdout: os.Stderr, Stderr: os.Stderr, Signals: signals, Exit: os.Exit,
	}
	switch kind {
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
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		<-signals
		stop()
	}()
	if err := runStandIn(ctx, kind, []byte(os.Args[1]), ready); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// runStandIn runs a child that is no service until ctx is done. The argument is its configuration.
func runStandIn(ctx context.Context, kind string, argument []byte, ready readyFunc) error {
	switch kind {
	case childInformer:
		return configured(ctx, argument, ready, runInformers)
	case childCluster:
		return configured(ctx, argument, ready, runCluster)
	case childTarget:
		return configured(ctx, argument, ready, runTarget)
	case childCopies:
		return configured(ctx, argument, ready, runCopies)
	case childPeerRelay:
		return configured(ctx, argument, ready, runPeerRelay)
	case childPeerAgent:
		return configured(ctx, argument, ready, runPeerAgent)
	}
	return fmt.Errorf("unknown child %q", kind)
}

func configured[T any](
	ctx context.Context, argument []byte, ready readyFunc, run func(context.Context, T, readyFunc) error,
) error {
	var cfg T
	if err := json.Unmarshal(argument, &cfg); err != nil {
		return fmt.Errorf("read the argument: %w", err)
	}
	return run(ctx, cfg, ready)
}

// child is a started process.
type child struct {
	name      string
	cmd       *exec.Cmd
	stdin     io.WriteCloser
	replies   chan reply
	ended     chan struct{}
	err       error // of its exit; read after ended
	log       string
	addresses map[string]string
	once      sync.Once
}

// childTimeout is the longest time until a child exits.
const childTimeout = 30 * time.Second

// startConfigured starts a child with a configuration as its argument.
func (f *fixture) startConfigured(ctx context.Context, kind string, cfg any) *child {
	return f.start(ctx, kind, string(must(json.Marshal(cfg))))
}

// start starts a child and returns when it is ready. It stops with the fixture at the latest.
func (f *fixture) start(ctx context.Context, kind string, args ...string) *child {
	f.children++
	name := fmt.Sprintf("%s.%d", kind, f.children)
	c := &child{
		name: name, replies: make(chan reply), ended: make(chan struct{}), log: f.file(name + ".log"),
		//nolint:gosec,noctx // this program; it exits at the end of its input
		cmd: exec.Command(must(os.Executable()), args...),
	}
	c.cmd.Env = append(os.Environ(), childVariable+"="+kind)
	if strings.HasPrefix(kind, peerPrefix) {
		c.cmd.Env = append(c.cmd.Env, "GORACE=exitcode=0")
	}
	if f.profile != "" {
		c.cmd.Env = append(c.cmd.Env, profileVariable+"="+f.profile+"."+name)
	}
	log := must(os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer log.Close() //nolint:errcheck // the child has its own
	c.cmd.Stderr = log
	// Ctrl-C at the terminal signals this process only, which stops the child.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout := must(c.cmd.StdoutPipe())
	c.stdin = must(c.cmd.StdinPipe())
	check(c.cmd.Start())
	go c.listen(stdout)
	f.onClose(func(context.Context) error { return c.stop() })
	c.addresses = c.receive(ctx).Ready
	return c
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

func (c *child) receive(ctx context.Context) reply {
	select {
	case r := <-c.replies:
		if r.Error != "" {
			check(fmt.Errorf("%s: %s", c.name, r.Error))
		}
		return r
	case <-c.ended:
		check(errors.Join(fmt.Errorf("%s exited; the end of its log:\n%s", c.name, c.tail()), c.err))
	case <-ctx.Done():
		check(fmt.Errorf("%s: %w", c.name, context.Cause(ctx)))
	}
	return reply{}
}

// memory returns the memory of the child.
func (c *child) memory(ctx context.Context) reply {
	must(io.WriteString(c.stdin, "memory\n"))
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
