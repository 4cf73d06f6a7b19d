package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/service"
	"lockstep.internal/tools/stack"
)

// What is measured runs as processes: Lockstep's own programs, and stand-ins for what surrounds them, which are this
// program started again.

// standInVariable has the kind of the stand-in. Its configuration is the argument, as JSON.
const standInVariable = "BENCH_STAND_IN"

// Kinds of stand-ins.
const (
	standInCluster   = "cluster"   // an API server
	standInInformers = "informers" // the baseline of the watcher
	standInTarget    = "target"    // of requests through relays
	standInCopies    = "copies"    // copies bytes: the physical limit
	standInPeerRelay = "peer-relay"
	standInPeerAgent = "peer-agent"
	standInWorkspace = "workspace" // the agent in a workspace
)

// readyTimeout is the time that a program has to become ready.
const readyTimeout = 5 * time.Minute

// readyFunc reports that a stand-in is ready at these addresses.
type readyFunc func(addresses map[string]string)

// runAsStandIn runs this process as a stand-in until SIGTERM. It returns false when the process is none.
func runAsStandIn() bool {
	kind := os.Getenv(standInVariable)
	if kind == "" {
		return false
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	run := map[string]func(context.Context, readyFunc) error{
		standInCluster: configured(runCluster), standInInformers: configured(runInformers),
		standInTarget: configured(runTarget), standInCopies: configured(runCopies),
		standInPeerRelay: configured(runPeerRelay), standInPeerAgent: configured(runPeerAgent),
		standInWorkspace: configured(runWorkspace),
	}[kind]
	err := run(ctx, func(addresses map[string]string) {
		slog.New(slog.NewJSONHandler(os.Stderr, nil)).Info(service.ReadyMessage, logkey.Addresses, addresses)
	})
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // the deferred call only restores signals
	}
	return true
}

func configured[T any](run func(context.Context, T, readyFunc) error) func(context.Context, readyFunc) error {
	return func(ctx context.Context, ready readyFunc) error {
		var cfg T
		if err := json.Unmarshal([]byte(os.Args[1]), &cfg); err != nil {
			return fmt.Errorf("read the argument: %w", err)
		}
		return run(ctx, cfg, ready)
	}
}

// process is a started program.
type process struct {
	*stack.Run

	cmd       *exec.Cmd
	log       *os.File
	http      *http.Client
	addresses map[string]string
}

// start starts a program of Lockstep and returns when it is ready. It stops with the fixture.
func (f *fixture) start(ctx context.Context, program string, args ...string) *process {
	return f.run(ctx, exec.Command(filepath.Join(f.programs, program), args...)) //nolint:gosec,noctx // see stop
}

// startStandIn starts a stand-in like start.
func (f *fixture) startStandIn(ctx context.Context, kind string, cfg any) *process {
	cmd := exec.Command(must(os.Executable()), string(must(json.Marshal(cfg)))) //nolint:gosec,noctx // see stop
	race := "atexit_sleep_ms=0"
	if kind == standInPeerRelay || kind == standInPeerAgent {
		race += " exitcode=0" // data races of other projects are not ours
	}
	cmd.Env = append(os.Environ(), standInVariable+"="+kind, "GORACE="+race)
	return f.run(ctx, cmd)
}

func (f *fixture) run(ctx context.Context, cmd *exec.Cmd) *process {
	f.processes++
	log := must(os.Create(f.file(fmt.Sprintf("%d.log", f.processes))))
	p := &process{cmd: cmd, log: log, http: f.httpClient(), Run: must(stack.StartProgram(cmd, log))}
	f.onClose(func(context.Context) error { return errors.Join(p.withLog(p.Stop()), log.Close()) })
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, errors.New("the program is not ready in time"))
	defer cancel()
	addresses, err := p.Ready(ctx)
	check(p.withLog(err))
	p.addresses = addresses
	return p
}

// withLog adds the end of the log to an error.
func (p *process) withLog(err error) error {
	if err == nil {
		return nil
	}
	raw, errRead := os.ReadFile(p.log.Name())
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return errors.Join(fmt.Errorf("%w; the end of its log:\n%s", err, strings.Join(lines[max(0, len(lines)-10):], "\n")),
		errRead)
}

// peakMB returns the peak of its resident memory in MB, with the pages of its program that it used. Linux only. The
// peak of getrusage may be that of this process: it survives exec.
func (p *process) peakMB() float64 {
	status := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)))
	_, value, _ := strings.Cut(string(status), "VmHWM:")
	var kilobytes float64
	must(fmt.Sscan(value, &kilobytes))
	return kilobytes / 1024
}

// heap returns the bytes of its heap after garbage collections: the least that its metrics show before the third,
// since the second also frees pooled objects. Reading the metrics causes the collections.
func (p *process) heap(ctx context.Context) float64 {
	least, last := math.Inf(1), math.Inf(1)
	for collections := 0.0; collections < last; {
		metrics := p.metrics(ctx)
		collections = metrics["go_gc_duration_seconds_count"]
		least, last = min(least, metrics["go_memstats_heap_alloc_bytes"]), min(last, collections+3)
	}
	return least
}

// metrics returns the metrics of a program of Lockstep that have no labels.
func (p *process) metrics(ctx context.Context) map[string]float64 {
	url := "http://" + p.addresses[stack.ListenerOps] + "/metrics"
	request := must(http.NewRequestWithContext(ctx, http.MethodGet, url, nil))
	response := must(p.http.Do(request)) //nolint:bodyclose // closed below
	metrics := map[string]float64{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			metrics[name] = value
		}
	}
	check(response.Body.Close())
	return metrics
}
