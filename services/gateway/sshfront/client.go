package sshfront

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/activity"
)

// client is a person's connection.
type client struct {
	server  *Server
	conn    *ssh.ServerConn
	person  Person
	slots   chan struct{}
	session *activity.Session
	running sync.WaitGroup
}

// serve enters the workspace and passes everything on, until one side leaves or the right ends.
func (c *client) serve(
	ctx context.Context, name string, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request,
) {
	grant, err := c.server.Workspaces.Enter(c.person.ID, name, access.SSH)
	if err != nil {
		c.withoutWorkspace(ctx, explain(name, err), channels, requests)
		return
	}
	defer grant.Close()
	agent, err := c.server.Workspaces.Connect(ctx, grant.Entry, c.person)
	if err != nil {
		c.server.Logger.WarnContext(ctx, "a workspace did not answer", logkey.Error(err))
		text := fmt.Sprintf("the workspace %s does not answer: try again in a moment", name)
		c.withoutWorkspace(ctx, text, channels, requests)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.running.Go(func() {
		select {
		case <-grant.Context().Done():
			c.server.Logger.InfoContext(ctx, "ended an SSH connection", logkey.Error(context.Cause(grant.Context())))
		case <-ctx.Done():
		}
		_ = c.conn.Close()
		_ = agent.Close()
	})
	c.running.Go(func() {
		if err := c.server.People.Ended(ctx, c.person); err != nil {
			c.server.Logger.InfoContext(ctx, "ended an SSH connection", logkey.Error(err))
			cancel()
		}
	})
	c.session = c.server.Activity.Open(grant.Entry.ID, c.person.ID)
	defer c.session.Close()
	c.running.Go(func() { forwardRequests(c.conn, agent.Requests) })
	c.running.Go(func() { forwardRequests(agent, requests) })
	c.running.Go(func() { c.forwardChannels(ctx, c.conn, agent.Channels, nil, c.session.Sent, c.session.Input) })
	c.running.Go(func() { // the agent has left
		_ = agent.Wait()
		_ = c.conn.Close()
	})
	c.forwardChannels(ctx, agent, channels, c.jump, c.session.Input, c.session.Sent)
}

func explain(name string, err error) string {
	if errors.Is(err, access.ErrNotRunning) {
		return fmt.Sprintf("the workspace %s is not running: start it with lockstep ws start %s", name, name)
	}
	return fmt.Sprintf("%s: %v; connect with ssh WORKSPACE@GATEWAY", name, err)
}

// withoutWorkspace serves jumps, and tells sessions why there is nothing else.
func (c *client) withoutWorkspace(
	ctx context.Context, text string, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request,
) {
	c.running.Go(func() { ssh.DiscardRequests(requests) })
	for channel := range channels {
		if c.jump(ctx, channel) {
			continue
		}
		if channel.ChannelType() != "session" {
			_ = channel.Reject(ssh.ConnectionFailed, text) // the client may have left
			continue
		}
		c.running.Go(func() { refuseSession(channel, text) })
	}
}

// refuseSession answers the first request that would start something with a line and the exit status 255, as ssh does
// for its own errors.
func refuseSession(offered ssh.NewChannel, text string) {
	channel, requests, err := offered.Accept()
	if err != nil {
		return // the client has left
	}
	defer channel.Close() //nolint:errcheck // see above
	for request := range requests {
		starts := startsProgram(request.Type)
		if request.WantReply {
			_ = request.Reply(starts || request.Type == "pty-req" || request.Type == "env", nil)
		}
		if starts {
			_, _ = fmt.Fprintf(channel.Stderr(), "lockstep: %s\r\n", text)
			_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{255}))
			return
		}
	}
}

// jump answers a connection to port 22 of a name, if it is one: this server is the SSH server of all workspaces.
func (c *client) jump(ctx context.Context, offered ssh.NewChannel) bool {
	var to struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if offered.ChannelType() != "direct-tcpip" || ssh.Unmarshal(offered.ExtraData(), &to) != nil ||
		to.Port != jumpPort || to.Host == "localhost" || net.ParseIP(to.Host) != nil {
		return false
	}
	if !c.take() {
		_ = offered.Reject(ssh.ResourceShortage, "too many open sessions and forwarded connections")
		return true
	}
	c.running.Go(func() {
		defer c.release()
		channel, requests, err := offered.Accept()
		if err != nil {
			return // the client has left
		}
		c.running.Go(func() { ssh.DiscardRequests(requests) })
		c.server.serve(ctx, jumpConn{channel, c.conn}, to.Host)
	})
	return true
}

func (c *client) take() bool {
	select {
	case c.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (c *client) release() { <-c.slots }

// jumpConn is a channel as a connection. Deadlines are those of the outer connection.
type jumpConn struct {
	ssh.Channel

	outer ssh.ConnMetadata
}

func (j jumpConn) LocalAddr() net.Addr              { return j.outer.LocalAddr() }
func (j jumpConn) RemoteAddr() net.Addr             { return j.outer.RemoteAddr() }
func (j jumpConn) SetDeadline(time.Time) error      { return nil }
func (j jumpConn) SetReadDeadline(time.Time) error  { return nil }
func (j jumpConn) SetWriteDeadline(time.Time) error { return nil }
