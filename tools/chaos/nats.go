package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	libservice "lockstep.internal/libs/service"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/port"
)

// natsVariable makes this program run a NATS server, in a process that can be killed. Its value is a natsConfig.
const natsVariable = "LOCKSTEP_CHAOS_NATS"

type natsConfig struct {
	File  string `json:"file"`
	Store string `json:"store"`
	Port  int    `json:"port"`
}

// serveNATS runs a server until SIGTERM.
func serveNATS(raw string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var cfg natsConfig
	if err := json.Unmarshal([]byte(raw), &cfg); err != nil {
		return fmt.Errorf("read %s: %w", natsVariable, err)
	}
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	server, err := natsd.Start(natsd.Options{ConfigFile: cfg.File, StoreDir: cfg.Store, Port: cfg.Port, Logger: logger})
	if err != nil {
		return err
	}
	logger.InfoContext(ctx, libservice.ReadyMessage)
	<-ctx.Done()
	return server.Stop()
}

// natsProcess is a NATS server in a process of its own. It keeps its port and its store over restarts.
type natsProcess struct {
	config natsConfig
	held   *port.Held
	log    io.Writer

	mu  sync.Mutex
	run *stack.Run
}

func newNATSProcess(ctx context.Context, file, store string, log io.Writer) (*natsProcess, error) {
	held, err := port.Hold()
	if err != nil {
		return nil, err
	}
	n := &natsProcess{config: natsConfig{File: file, Store: store, Port: held.Number()}, held: held, log: log}
	return n, n.start(ctx)
}

func (n *natsProcess) address() string { return n.held.Address() }

// start returns when the server accepts clients.
func (n *natsProcess) start(ctx context.Context) error {
	raw, err := json.Marshal(n.config)
	if err != nil {
		return fmt.Errorf("start NATS: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start NATS: %w", err)
	}
	cmd := exec.Command(self) //nolint:gosec,noctx // this program; stop ends it
	cmd.Env = append(os.Environ(), natsVariable+"="+string(raw))
	run, err := stack.StartProgram(cmd, n.log)
	if err != nil {
		return fmt.Errorf("start NATS: %w", err)
	}
	n.mu.Lock()
	n.run = run
	n.mu.Unlock()
	if _, err := run.Ready(ctx); err != nil {
		return fmt.Errorf("start NATS: %w", err)
	}
	return nil
}

func (n *natsProcess) current() *stack.Run {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.run
}

func (n *natsProcess) stop() error {
	if err := n.current().Stop(); err != nil {
		return fmt.Errorf("stop NATS: %w", err)
	}
	return n.held.Release()
}
