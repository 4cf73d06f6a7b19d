package sshserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/gateway/agent/processes"
)

// Limits. They hold before a client has authenticated, too.
const (
	maxConnections   = 100
	maxChannels      = 64 // of a connection: sessions and forwarded connections
	maxAttempts      = 3
	handshakeTimeout = 15 * time.Second
	// acceptPause is the time without new connections after the system refused one, such as for lack of descriptors.
	acceptPause = 100 * time.Millisecond
)

// Options of a server. All are required.
type Options struct {
	// Workspace is the id of the workspace: the only user, and the required principal of certificates.
	Workspace string
	// Authorities returns the keys that sign certificates. It is called for each connection.
	Authorities func() ([]ssh.PublicKey, error)
	HostKey     ssh.Signer
	// Home is the folder where sessions start.
	Home string
	// StateFolder is where sockets of forwarded SSH agents are.
	StateFolder string
	// Environ is the environment of sessions: NAME=VALUE.
	Environ []string
	Logger  *slog.Logger
}

// Server accepts SSH connections.
type Server struct {
	Options

	slots     chan struct{}
	processes *processes.Monitor
}

// New returns a server.
func New(o Options) *Server {
	return &Server{
		Options: o, slots: make(chan struct{}, maxConnections), processes: processes.NewMonitor(o.Workspace),
	}
}

// Serve accepts connections until the context ends. Then it closes all of them and returns when their sessions have
// ended.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // Accept reports it
	defer stop()
	var connections sync.WaitGroup
	defer connections.Wait()
	defer cancel()
	for {
		conn, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept SSH connections: %w", err)
		case err != nil:
			s.Logger.WarnContext(ctx, "accept an SSH connection", logkey.Error(err))
			pause(ctx, acceptPause)
			continue
		}
		select {
		case s.slots <- struct{}{}:
			connections.Go(func() {
				defer func() { <-s.slots }()
				s.serveConnection(ctx, conn)
			})
		default:
			s.Logger.WarnContext(ctx, "refused an SSH connection: there are too many", logkey.Count, maxConnections)
			_ = conn.Close()
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// serveConnection serves one client until it leaves or the context ends.
func (s *Server) serveConnection(ctx context.Context, raw net.Conn) {
	defer raw.Close() //nolint:errcheck // the client has left, or is sent away
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	config, err := s.serverConfig()
	if err != nil {
		s.Logger.ErrorContext(ctx, "refused an SSH connection", logkey.Error(err))
		return
	}
	if err := raw.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return // closed
	}
	conn, channels, requests, err := ssh.NewServerConn(raw, config)
	if err != nil {
		s.Logger.InfoContext(ctx, "an SSH connection did not authenticate", logkey.Error(err))
		return
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		return
	}
	c := &connection{
		server: s, conn: conn, log: s.Logger, allowed: conn.Permissions.Extensions, slots: make(chan struct{}, maxChannels),
		listeners: map[string]net.Listener{},
	}
	c.serve(ctx, channels, requests)
	cancel()
	c.wait()
}

// serverConfig authenticates with certificates only. Errors say what a certificate lacks; clients see "permission
// denied" only.
func (s *Server) serverConfig() (*ssh.ServerConfig, error) {
	authorities, err := s.Authorities()
	if err != nil {
		return nil, err
	}
	checker := &ssh.CertChecker{IsUserAuthority: func(key ssh.PublicKey) bool {
		for _, authority := range authorities {
			if string(authority.Marshal()) == string(key.Marshal()) {
				return true
			}
		}
		return false
	}}
	config := &ssh.ServerConfig{
		MaxAuthTries:  maxAttempts,
		ServerVersion: "SSH-2.0-Lockstep",
		PublicKeyCallback: func(conn ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if conn.User() != s.Workspace {
				return nil, fmt.Errorf("user %.80q is not this workspace", conn.User())
			}
			if _, ok := key.(*ssh.Certificate); !ok {
				return nil, errors.New("the key is not a certificate")
			}
			return checker.Authenticate(conn, key)
		},
	}
	config.AddHostKey(s.HostKey)
	return config, nil
}
