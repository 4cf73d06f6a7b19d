package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	relayv1 "lockstep.internal/schemas/gen/lockstep/relay/v1"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

func (a *app) relayForward() *cobra.Command {
	var listen string
	var stdio bool
	c := &cobra.Command{
		Use:               "forward AGENT TARGET [--listen ADDRESS | --stdio]",
		Short:             "Forward local connections to a target of an agent",
		Args:              exactly("AGENT", "TARGET"),
		ValidArgsFunction: a.completeAgents,
		Long: `Forward local connections to a target of an agent, such as a database in its cluster. The configuration
of the agent must name the target, and the relay agent must allow it. With --stdio, forward standard input and output,
for programs such as ssh that use a command as a connection.

Everyone who can connect to the listen address reaches the target with your identity.`,
		Example: `  lockstep relay forward my-cluster shop-db --listen 127.0.0.1:5432
  ssh -o ProxyCommand='lockstep relay forward my-cluster bastion --stdio' me@bastion`,
		RunE: func(c *cobra.Command, args []string) error {
			if stdio && c.Flags().Changed("listen") {
				return fault.New(errcode.InvalidArgument, "set either --listen or --stdio, not both")
			}
			relay, api, err := a.relay()
			if err != nil {
				return err
			}
			defer relay.Close()
			id, err := agentID(c.Context(), api, args[0])
			if err != nil {
				return err
			}
			if stdio {
				return a.forwardStdio(c.Context(), relay, id, args[1], c.InOrStdin())
			}
			response, err := api.Agents.GetAgent(c.Context(), connect.NewRequest(&statev1.GetAgentRequest{Id: id}))
			if err != nil {
				return err
			}
			agent := response.Msg.GetAgent()
			if err := checkTarget(agent, args[1]); err != nil {
				return err
			}
			if err := a.noteUnconnected(c.Context(), relay, agent); err != nil {
				return err
			}
			return a.forward(c.Context(), &forwarder{relay: relay, agent: agent, target: args[1]}, listen)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on; port 0 uses a free one")
	c.Flags().BoolVar(&stdio, "stdio", false, "forward standard input and output instead")
	return c
}

// forwardStdio forwards standard input and output to a target.
func (a *app) forwardStdio(ctx context.Context, relay *client.Relay, agent int64, target string, in io.Reader) error {
	stream, err := relay.Open(ctx, agent, target)
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // read to its end, or interrupted
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	go func() { // it may still read standard input when the process exits
		if _, err := io.Copy(stream, in); err == nil {
			_ = stream.CloseWrite()
		}
	}()
	if _, err := io.Copy(a.stdout, stream); err != nil && ctx.Err() == nil {
		return fault.Wrap(err, errcode.Unavailable, "lost the stream to %s: %v", target, err)
	}
	return ctx.Err()
}

// checkTarget returns an error if the configuration of an agent does not name a target.
func checkTarget(agent *statev1.Agent, name string) error {
	var known []string
	for _, target := range agent.GetConfiguration().GetRelayTargets().GetTargets() {
		if target.GetName() == name {
			return nil
		}
		known = append(known, target.GetName())
	}
	if len(known) == 0 {
		known = []string{"none"}
	}
	return fault.New(errcode.NotFound, "agent %q has no target %q: its targets are %s; see "+
		"`lockstep agent configure --help`", agent.GetName(), name, strings.Join(known, ", "))
}

// noteUnconnected notes that an agent is not connected.
func (a *app) noteUnconnected(ctx context.Context, relay *client.Relay, agent *statev1.Agent) error {
	response, err := relay.ConnectedAgentsById(ctx,
		connect.NewRequest(&relayv1.ConnectedAgentsByIdRequest{AgentId: agent.GetId()}))
	if err != nil {
		return err
	}
	if len(response.Msg.GetAgents()) == 0 {
		return a.note("agent %q is not connected; requests wait for it", agent.GetName())
	}
	return nil
}

// forwarder forwards connections to a target.
type forwarder struct {
	relay  *client.Relay
	agent  *statev1.Agent
	target string
}

// forward accepts connections until ctx is done, and then closes all.
func (a *app) forward(ctx context.Context, f *forwarder, listen string) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", listen)
	if err != nil {
		return cannotListen(listen, err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	if err := a.write(
		fmt.Sprintf("%s forwards to %s of agent %s until Ctrl-C\n", listener.Addr(), f.target, f.agent.GetName()),
	); err != nil {
		return errors.Join(err, listener.Close())
	}
	var open sync.WaitGroup
	defer open.Wait()
	var notes sync.Mutex
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			return fault.Wrap(err, errcode.Internal, "accept a connection: %v", err)
		}
		open.Go(func() {
			if err := f.forward(ctx, conn); err != nil && ctx.Err() == nil {
				notes.Lock()
				defer notes.Unlock()
				_ = a.note("the connection from %s failed: %v", conn.RemoteAddr(), public(err)) // the connection is closed, too
			}
		})
	}
}

// cannotListen says in plain words why the program cannot listen on an address.
func cannotListen(listen string, err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return fault.Wrap(err, errcode.InvalidArgument, "cannot listen on %s: %v", listen, errno)
	}
	return fault.Wrap(err, errcode.InvalidArgument, "--listen %q must be HOST:PORT with an address of this machine",
		listen)
}

// public returns the message of an error for the user.
func public(err error) error {
	f := fault.From(err)
	if f.Code == errcode.Internal {
		return err
	}
	return errors.New(f.Message)
}

// forward copies both directions of a connection until each ends.
func (f *forwarder) forward(ctx context.Context, conn net.Conn) error {
	local, _ := conn.(*net.TCPConn)
	defer local.Close() //nolint:errcheck // both directions have ended
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.relay.Open(ctx, f.agent.GetId(), f.target)
	if err != nil {
		_ = local.SetLinger(0) // close with RST, not FIN
		return err
	}
	defer stream.Close() //nolint:errcheck // both directions have ended
	defer context.AfterFunc(ctx,
		func() { _, _ = local.SetLinger(0), errors.Join(stream.Close(), local.Close()) })() // ends both
	ended := make(chan error, 1)
	go func() { ended <- copyHalf(stream, local) }()
	err = copyHalf(local, stream)
	if err != nil {
		_ = local.SetLinger(0) // a reset: the response is incomplete
		cancel()
	}
	return errors.Join(err, <-ended)
}

// halfCloser is a connection with independent ends of both directions.
type halfCloser interface {
	io.ReadWriter
	CloseWrite() error
}

// copyHalf copies one direction until its end.
func copyHalf(to, from halfCloser) error {
	if _, err := io.Copy(to, from); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if err := to.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("half-close: %w", err)
	}
	return nil
}
