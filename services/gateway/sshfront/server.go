package sshfront

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/time/rate"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/activity"
)

const (
	// jumpPort is the port of a workspace's name that reaches its SSH server.
	jumpPort = 22
	// acceptPause is the time without new connections after the system refused one.
	acceptPause = 100 * time.Millisecond
)

// Person is who has authenticated.
type Person struct {
	ID int64
	// Login names the person in logs of workspaces.
	Login string
	// Credential is how the person has authenticated. It is for People alone.
	Credential any
}

// People authenticate.
type People interface {
	// ByKey returns who has registered a public key.
	ByKey(ctx context.Context, key ssh.PublicKey) (Person, error)
	// ByToken returns whose access token it is.
	ByToken(ctx context.Context, token string) (Person, error)
	// Ended waits until the credential of a person is no longer valid, and returns why. It returns nil when ctx ends.
	Ended(ctx context.Context, person Person) error
}

// Activity counts what people do.
type Activity interface {
	Open(workspace string, user int64) *activity.Session
}

// Workspaces are reached.
type Workspaces interface {
	// Enter is access.Table.Enter.
	Enter(userID int64, name string, port int) (*access.Grant, error)
	// Connect opens an SSH connection to the agent of a workspace, with the rights of the person.
	Connect(ctx context.Context, workspace access.Entry, person Person) (Connection, error)
}

// Connection is an SSH connection to an agent.
type Connection struct {
	ssh.Conn

	Channels <-chan ssh.NewChannel
	Requests <-chan *ssh.Request
}

// Options of a server. All are required.
type Options struct {
	HostKeys   []ssh.Signer
	People     People
	Workspaces Workspaces
	Activity   Activity
	Logger     *slog.Logger
	Limits     Limits
}

// Limits of a server.
type Limits struct {
	// Connections at the same time.
	Connections int
	// Handshake is the time until a client has authenticated.
	Handshake time.Duration
	// Attempts to authenticate, of one connection.
	Attempts int
	// Rate of attempts that fail, of one address: per second, and at once.
	Rate  rate.Limit
	Burst int
	// Channels of one connection: sessions and forwarded connections.
	Channels int
}

// DefaultLimits are those of the configuration.
func DefaultLimits() Limits {
	return Limits{Connections: 2000, Handshake: 20 * time.Second, Attempts: 6, Rate: 1, Burst: 20, Channels: 100}
}

// Server accepts connections.
type Server struct {
	Options
	metrics

	slots    chan struct{}
	failures *failures
}

// New returns a server.
func New(o Options) *Server {
	return &Server{
		Options: o, slots: make(chan struct{}, o.Limits.Connections), failures: newFailures(o.Limits), metrics: newMetrics(),
	}
}

// Serve accepts connections until the context ends. Then it closes all of them and returns.
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
				s.serve(ctx, conn, "")
			})
		default:
			s.Logger.WarnContext(ctx, "refused an SSH connection: there are too many",
				slog.Int(logkey.Limit, s.Limits.Connections))
			s.refused.WithLabelValues(refusedConnections).Inc()
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

// serve serves a client. The workspace is known if the client came by a jump; else it is the name of the user.
func (s *Server) serve(ctx context.Context, raw net.Conn, workspace string) {
	defer raw.Close() //nolint:errcheck // the client has left, or is sent away
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	if !s.failures.allowed(raw.RemoteAddr()) {
		s.refused.WithLabelValues(refusedFailures).Inc()
		return
	}
	handshake := time.AfterFunc(s.Limits.Handshake, func() { _ = raw.Close() })
	conn, channels, requests, err := ssh.NewServerConn(raw, s.config(ctx, raw.RemoteAddr()))
	handshake.Stop()
	if err != nil {
		s.refused.WithLabelValues(refusedHandshake).Inc()
		s.Logger.InfoContext(ctx, "an SSH connection did not authenticate", logkey.Error(err))
		return
	}
	person, known := conn.Permissions.ExtraData[personKey{}].(Person)
	if !known {
		s.Logger.ErrorContext(ctx, "refused an SSH connection without a person")
		return
	}
	c := &client{server: s, conn: conn, person: person, slots: make(chan struct{}, s.Limits.Channels)}
	if workspace == "" {
		workspace = conn.User()
	}
	s.connections.Inc()
	defer s.connections.Dec()
	c.serve(ctx, workspace, channels, requests)
	cancel()
	c.running.Wait()
}

// personKey is the key of the person in the permissions that an authenticated connection carries.
type personKey struct{}

func permissions(p Person) *ssh.Permissions {
	return &ssh.Permissions{ExtraData: map[any]any{personKey{}: p}}
}

func (s *Server) config(ctx context.Context, from net.Addr) *ssh.ServerConfig {
	config := &ssh.ServerConfig{
		MaxAuthTries: s.Limits.Attempts, ServerVersion: "SSH-2.0-Lockstep",
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			// Clients offer every key that they have: one that is unknown is no attack.
			person, err := s.People.ByKey(ctx, key)
			if err != nil {
				return nil, err
			}
			return permissions(person), nil
		},
		PasswordCallback: func(_ ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			if !s.failures.allowed(from) {
				return nil, errTooManyFailures
			}
			person, err := s.People.ByToken(ctx, string(password))
			if err != nil {
				s.failures.add(from)
				return nil, err
			}
			return permissions(person), nil
		},
	}
	for _, key := range s.HostKeys {
		config.AddHostKey(key)
	}
	return config
}
