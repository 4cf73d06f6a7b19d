package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	relayv1 "lockstep.internal/schemas/gen/lockstep/relay/v1"
	"lockstep.internal/tools/client"
)

func (a *app) relayForward() *cobra.Command {
	var listen string
	var stdio bool
	c := &cobra.Command{
		Use: "forward AGENT TARGET [--listen ADDRESS | --stdio]", Short: "Reach a target of an agent from here", Args: exactly("AGENT", "TARGET"), ValidArgsFunction: a.completeAgents,
		Long: `Take connections here and carry each to a target of an agent, such as a database in its cluster: one that the agent's configuration names and the agent itself allows. With
--stdio it is this command's input and output that are carried, for programs such as ssh that can use a command as a connection.

Whoever can connect to the address that is listened on reaches the target in your name.`,
		Example: `  lockstep relay forward my-cluster shop-db --listen 127.0.0.1:5432
  ssh -o ProxyCommand='lockstep relay forward my-cluster bastion --stdio' me@bastion`,
		RunE: func(c *cobra.Command, args []string) error {
			if stdio && c.Flags().Changed("listen") {
				return fault.New(errcode.InvalidArgument, "give either --listen or --stdio")
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
				return a.carry(c.Context(), relay, id, args[1], c.InOrStdin())
			}
			if err := a.noteUnconnected(c.Context(), relay, id); err != nil {
				return err
			}
			return a.forward(c.Context(), &forwarder{relay: relay, agent: id, target: args[1]}, listen)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "where to take connections; port 0 takes a free one")
	c.Flags().BoolVar(&stdio, "stdio", false, "carry standard input and output instead")
	return c
}

// carry joins what this command reads and prints with a target.
func (a *app) carry(ctx context.Context, relay *client.Relay, agent int64, target string, in io.Reader) error {
	stream, err := relay.Open(ctx, agent, target)
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // its end was read, or nobody waits for it
	defer context.AfterFunc(ctx, func() { _ = stream.Close() })()
	go func() { // it ends with the process where nothing more is to be read
		if _, err := io.Copy(stream, in); err == nil {
			_ = stream.CloseWrite()
		}
	}()
	if _, err := io.Copy(a.stdout, stream); err != nil && ctx.Err() == nil {
		return fault.Wrap(err, errcode.Unavailable, "the stream to %s broke off: %v", target, err)
	}
	return ctx.Err()
}

// noteUnconnected says so where an agent that the caller may reach is not there.
func (a *app) noteUnconnected(ctx context.Context, relay *client.Relay, agent int64) error {
	response, err := relay.ConnectedAgentsById(ctx, connect.NewRequest(&relayv1.ConnectedAgentsByIdRequest{AgentId: agent}))
	if err != nil {
		return err
	}
	if len(response.Msg.GetAgents()) == 0 {
		return a.note("agent %d is not connected at present; connections wait for it", agent)
	}
	return nil
}

// forwarder carries connections to a target.
type forwarder struct {
	relay  *client.Relay
	agent  int64
	target string
}

// forward takes connections until ctx is done, and lets go of those that there are.
func (a *app) forward(ctx context.Context, f *forwarder, listen string) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", listen)
	if err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "cannot listen: %v", err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	if err := a.write(fmt.Sprintf("%s leads to %s of agent %d until Ctrl-C\n", listener.Addr(), f.target, f.agent)); err != nil {
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
			return fault.Wrap(err, errcode.Internal, "take a connection: %v", err)
		}
		open.Go(func() {
			if err := f.carry(ctx, conn); err != nil && ctx.Err() == nil {
				notes.Lock()
				defer notes.Unlock()
				_ = a.note("the connection from %s was not carried to its end: %v", conn.RemoteAddr(), said(err)) // who does not read it has the connection's end
			}
		})
	}
}

// said is what people are told of an error.
func said(err error) error {
	f := fault.From(err)
	if f.Code == errcode.Internal {
		return err
	}
	return errors.New(f.Message)
}

// carry one connection to its end, each direction to its own.
func (f *forwarder) carry(ctx context.Context, conn net.Conn) error {
	local, _ := conn.(*net.TCPConn)
	defer local.Close() //nolint:errcheck // both directions have ended
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.relay.Open(ctx, f.agent, f.target)
	if err != nil {
		_ = local.SetLinger(0) // a reset says that there is nobody, and not that all was said
		return err
	}
	defer stream.Close()                                                                                             //nolint:errcheck // both directions have ended
	defer context.AfterFunc(ctx, func() { _, _ = local.SetLinger(0), errors.Join(stream.Close(), local.Close()) })() // ends both
	ended := make(chan error, 1)
	go func() { ended <- pass(stream, local) }()
	err = pass(local, stream)
	if err != nil {
		_ = local.SetLinger(0) // what there was of the answer is not all of it, whoever closes first
		cancel()
	}
	return errors.Join(err, <-ended)
}

// half of a connection can be ended.
type half interface {
	io.ReadWriter
	CloseWrite() error
}

// pass copies one direction, and its end.
func pass(to, from half) error {
	if _, err := io.Copy(to, from); err != nil {
		return fmt.Errorf("it broke off: %w", err)
	}
	if err := to.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("end a direction: %w", err)
	}
	return nil
}
