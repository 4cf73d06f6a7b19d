package dial

import (
	"context"
	"net"
	"strconv"

	"lockstep.internal/services/gateway/access"
)

// Direct connects to workspaces in the network of the gateway, by the names of their Services.
type Direct struct {
	// Domain of Services, such as svc or svc.cluster.local.
	Domain string
	// DialContext is that of [net.Dialer].
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Dial implements [Network].
func (d Direct) Dial(ctx context.Context, e access.Entry, port int) (net.Conn, error) {
	address := net.JoinHostPort(e.Name+"."+e.Namespace+"."+d.Domain, strconv.Itoa(port))
	return d.DialContext(ctx, "tcp", address)
}
