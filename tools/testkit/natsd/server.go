package natsd

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"lockstep.internal/tools/testkit/port"
)

// ErrStopped is returned after Stop: the server cannot be started again.
var ErrStopped = errors.New("the NATS server is stopped")

// Server is a NATS server in this process. Its methods may be called from any goroutine.
type Server struct {
	opts      Options
	store     string
	temporary bool
	url       string
	port      int
	held      *port.Held // the port, also while the server is down; nil if Options.Port is set

	mu      sync.Mutex
	running *server.Server // nil while down
	closed  bool
}

// Start starts a server and returns when it accepts clients and JetStream is ready. The caller must
// call Stop.
func Start(opts Options) (*Server, error) {
	s := &Server{opts: opts.withDefaults(), store: opts.StoreDir, port: opts.Port}
	if s.port == 0 || s.port == server.RANDOM_PORT {
		var err error
		if s.held, err = port.Hold(); err != nil {
			return nil, err
		}
		s.port = s.held.Number()
	}
	if s.store == "" {
		var err error
		if s.store, err = os.MkdirTemp("", "lockstep-nats-"); err != nil {
			return nil, errors.Join(fmt.Errorf("create a folder for the NATS store: %w", err), s.cleanup())
		}
		s.temporary = true
	}
	if err := s.launch(); err != nil {
		return nil, errors.Join(fmt.Errorf("start NATS: %w", err), s.cleanup())
	}
	return s, nil
}

func (s *Server) launch() error {
	so, err := s.opts.server(s.store, s.port)
	if err != nil {
		return err
	}
	running, err := server.NewServer(so)
	if err != nil {
		return fmt.Errorf("configure the server: %w", err)
	}
	log := &serverLog{logger: s.opts.Logger}
	running.SetLoggerV2(log, false, false, false)
	running.Start()
	if !awaitReady(running, log, s.opts.ReadyTimeout) {
		running.Shutdown()
		running.WaitForShutdown()
		if fatal := log.lastFatal(); fatal != "" {
			return errors.New(fatal)
		}
		return fmt.Errorf("not ready after %s", s.opts.ReadyTimeout)
	}
	s.running = running
	if s.url == "" { // once, before Start returns: read without the mutex afterwards
		s.url = running.ClientURL()
	}
	return nil
}

// awaitReady polls, so that it returns at once after a fatal error.
func awaitReady(running *server.Server, log *serverLog, timeout time.Duration) bool {
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); {
		if log.lastFatal() != "" {
			return false
		}
		if running.ReadyForConnections(100*time.Millisecond) && running.JetStreamEnabled() {
			return true
		}
	}
	return false
}

// ClientURL is the URL for clients; Restart does not change it.
func (s *Server) ClientURL() string { return s.url }

// WebSocketURL is the URL for clients with WebSockets, if the configuration file has a port for them. Restart changes
// it.
func (s *Server) WebSocketURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running.WebsocketURL()
}

// Port is the port for clients on 127.0.0.1; Restart does not change it.
func (s *Server) Port() int { return s.port }

// StoreDir is the folder that keeps the streams.
func (s *Server) StoreDir() string { return s.store }

// Down stops the server and keeps the store, like an outage. Restart ends it. Further calls do nothing.
func (s *Server) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
}

// Restart stops the server if it runs, and starts it with the same store and port.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restart(func() error { return nil })
}

// Snapshot copies the store into the folder, which is created and must be empty, and restarts the
// server. Clients see a short outage.
func (s *Server) Snapshot(folder string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restart(func() error { return copyStore(folder, s.store) })
}

// Restore replaces the store with a copy of Snapshot and restarts the server. Messages that were stored after the
// copy are lost.
func (s *Server) Restore(folder string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restart(func() error {
		if err := os.RemoveAll(s.store); err != nil {
			return fmt.Errorf("remove the NATS store: %w", err)
		}
		return copyStore(s.store, folder)
	})
}

func (s *Server) restart(offline func() error) error {
	if s.closed {
		return ErrStopped
	}
	s.end()
	if err := offline(); err != nil {
		return err
	}
	if err := s.launch(); err != nil {
		return fmt.Errorf("restart NATS: %w", err)
	}
	return nil
}

// Stop stops serving and removes a temporary store. Further calls do nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.end()
	return s.cleanup()
}

func (s *Server) end() {
	if s.running == nil {
		return
	}
	// Wait for pending logins: the auth callout of a server that is shutting down panics.
	s.running.LameDuckShutdown()
	s.running.Shutdown()
	s.running.WaitForShutdown()
	s.running = nil
}

func (s *Server) cleanup() error {
	err := s.held.Release()
	if !s.temporary {
		return err
	}
	if failed := os.RemoveAll(s.store); failed != nil {
		err = errors.Join(err, fmt.Errorf("remove the temporary NATS store: %w", failed))
	}
	return err
}

func copyStore(to, from string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return fmt.Errorf("create folder for the NATS store: %w", err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy the NATS store from %s to %s: %w", from, to, err)
	}
	return nil
}
