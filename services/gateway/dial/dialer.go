package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/authority"
	"lockstep.internal/services/gateway/sshfront"
)

// handshakeTimeout bounds a connection to an agent until it has authenticated.
const handshakeTimeout = 15 * time.Second

// errUnknown is returned for a workspace that has been deleted meanwhile.
var errUnknown = errors.New("the workspace does not exist any more")

// HostKeys know the agents of workspaces.
type HostKeys interface {
	// Check returns an error unless the key is that of the workspace. The first key of a workspace is its key.
	Check(ctx context.Context, workspace string, key ssh.PublicKey) error
}

// Network has the Services of workspaces: [Direct] or [Tunnel].
type Network interface {
	Dial(ctx context.Context, workspace access.Entry, port int) (net.Conn, error)
}

// Options of a [Dialer]. All are required.
type Options struct {
	Table     *access.Table
	Authority *authority.Authority
	HostKeys  HostKeys
	Network   Network
	Now       func() time.Time
}

// Dialer connects to workspaces. It is safe for concurrent use.
type Dialer struct{ Options }

// Dial connects to a port of a workspace by its id.
func (d Dialer) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	e, found := d.Table.Find(id)
	if !found {
		return nil, errUnknown
	}
	return d.dial(ctx, e, port)
}

func (d Dialer) dial(ctx context.Context, e access.Entry, port int) (net.Conn, error) {
	conn, err := d.Network.Dial(ctx, e, port)
	if err != nil {
		return nil, fmt.Errorf("connect to port %d of workspace %s: %w", port, e.Name, err)
	}
	return conn, nil
}

// Connect opens an SSH connection to the agent of a workspace, with a certificate for the person.
func (d Dialer) Connect(
	ctx context.Context, e access.Entry, person sshfront.Person,
) (sshfront.Connection, error) {
	return d.connect(ctx, e, person.Login,
		authority.Rights{Terminal: true, PortForwarding: true, AgentForwarding: true})
}

func (d Dialer) connect(
	ctx context.Context, e access.Entry, login string, rights authority.Rights,
) (sshfront.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	signer, err := d.Authority.Sign(e.ID, login, rights, d.Now())
	if err != nil {
		return sshfront.Connection{}, fmt.Errorf("connect to workspace %s: %w", e.Name, err)
	}
	raw, err := d.dial(ctx, e, workspaceagent.Port)
	if err != nil {
		return sshfront.Connection{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() }) // the handshake reports it
	conn, channels, requests, err := ssh.NewClientConn(raw, e.Name, &ssh.ClientConfig{
		User: e.ID, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			return d.HostKeys.Check(ctx, e.ID, key)
		},
	})
	if err == nil && !stop() {
		err = errors.Join(ctx.Err(), conn.Close())
	}
	if err != nil {
		_ = raw.Close()
		return sshfront.Connection{}, fmt.Errorf("connect to the agent of workspace %s: %w", e.Name, err)
	}
	return sshfront.Connection{Conn: conn, Channels: channels, Requests: requests}, nil
}
