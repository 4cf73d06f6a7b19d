package sshserver

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"sync"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/gateway/agent/listening"
)

// SubsystemPorts is the subsystem that lists the open ports of the workspace.
const SubsystemPorts = "ports@lockstep.dev"

// Extensions of certificates.
//
// See https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.certkeys.
const (
	permitPty             = "permit-pty"
	permitPortForwarding  = "permit-port-forwarding"
	permitAgentForwarding = "permit-agent-forwarding"
)

// connection is an authenticated client.
type connection struct {
	server  *Server
	conn    *ssh.ServerConn
	log     *slog.Logger
	allowed map[string]string // extensions of the certificate
	slots   chan struct{}
	running sync.WaitGroup

	mu        sync.Mutex
	listeners map[string]net.Listener // forwarded to the client, by what it asked for
}

func (c *connection) may(extension string) bool {
	_, ok := c.allowed[extension]
	return ok
}

// serve returns when the client has left.
func (c *connection) serve(ctx context.Context, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	c.running.Go(func() { c.serveRequests(ctx, requests) })
	for channel := range channels {
		select {
		case c.slots <- struct{}{}:
			c.running.Go(func() {
				defer func() { <-c.slots }()
				c.serveChannel(ctx, channel)
			})
		default:
			c.reject(ctx, channel, ssh.ResourceShortage, "too many open sessions and forwarded connections")
		}
	}
}

// wait returns when everything of this client has ended.
func (c *connection) wait() {
	c.mu.Lock()
	for _, l := range c.listeners {
		_ = l.Close() // nobody is there to hear of it
	}
	c.mu.Unlock()
	c.running.Wait()
}

func (c *connection) serveChannel(ctx context.Context, channel ssh.NewChannel) {
	switch channel.ChannelType() {
	case "session":
		accepted, requests, err := channel.Accept()
		if err != nil {
			return // the client has left
		}
		newSession(c, accepted).serve(ctx, requests)
	case "direct-tcpip":
		if !c.may(permitPortForwarding) {
			c.reject(ctx, channel, ssh.Prohibited, "forwarding of ports is not allowed")
			return
		}
		c.forward(ctx, channel)
	default:
		c.reject(ctx, channel, ssh.UnknownChannelType, "unknown type of channel")
	}
}

func (c *connection) reject(ctx context.Context, channel ssh.NewChannel, reason ssh.RejectionReason, text string) {
	if err := channel.Reject(reason, text); err != nil {
		c.log.DebugContext(ctx, "reject a channel", logkey.Error(err))
	}
}

// reply answers a request that waits for an answer. An error means that the client has left, which ends the connection.
func (c *connection) reply(ctx context.Context, request *ssh.Request, ok bool, payload []byte) {
	if !request.WantReply {
		return
	}
	if err := request.Reply(ok, payload); err != nil {
		c.log.DebugContext(ctx, "answer a request", logkey.Error(err))
	}
}

func (c *connection) serveRequests(ctx context.Context, requests <-chan *ssh.Request) {
	for request := range requests {
		switch request.Type {
		case "tcpip-forward":
			payload, ok := c.listen(ctx, request.Payload)
			c.reply(ctx, request, ok, payload)
		case "cancel-tcpip-forward":
			c.reply(ctx, request, c.cancelListen(request.Payload), nil)
		default:
			c.reply(ctx, request, false, nil)
		}
	}
}

// serveFiles serves sftp. The protocol has no working folder: relative paths begin at the home folder.
func (s *session) serveFiles() error {
	server, err := sftp.NewServer(openChannel{s.channel}, sftp.WithServerWorkingDirectory(s.server.Home))
	if err != nil {
		return err //nolint:wrapcheck // the caller says what failed
	}
	defer server.Close()                                    //nolint:errcheck // files that the client has left open
	if err := server.Serve(); err != nil && err != io.EOF { //nolint:errorlint // sftp returns io.EOF itself
		return err //nolint:wrapcheck // see above
	}
	return nil
}

// openChannel is not closed by the server of files: the status of the session follows.
type openChannel struct{ ssh.Channel }

func (openChannel) Close() error { return nil }

func (s *session) serveProcesses(ctx context.Context) error {
	report, err := s.server.processes.Check(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(s.channel).Encode(report) //nolint:wrapcheck // the caller says what failed
}

func (s *session) servePorts() error {
	ports, err := listening.Ports()
	if err != nil {
		return err
	}
	return json.NewEncoder(s.channel).Encode(ports) //nolint:wrapcheck // the caller says what failed
}
