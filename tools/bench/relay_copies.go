package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
)

// A route through processes that only copy bytes from one connection to another shows what so many processes cost,
// whatever they do. They know no agents and have a connection for each of the client's, so they are no relay.

// copyConfig configures a stand-in that copies. It has an address for each entry of To.
type copyConfig struct {
	certified

	To map[string]copyTarget
}

// copyTarget is where bytes are copied to.
type copyTarget struct {
	Address  string
	IsSecure bool
}

// copies returns the route through as many processes as Lockstep's has: a relay and an agent.
func (r *relayFixture) copies(ctx context.Context) route {
	to := map[string]copyTarget{targetHTTP: {r.target[targetHTTP], false}, targetStream: {r.target[targetStream], false}}
	if r.tls != nil {
		to = map[string]copyTarget{
			targetHTTPS: to[targetHTTP], targetStreamTLS: to[targetStream], targetKube: {r.target[targetKube], true},
		}
	}
	first := r.startStandIn(ctx, standInCopies, copyConfig{r.certified, to}).addresses
	for name := range to {
		to[name] = copyTarget{first[name], r.tls != nil}
	}
	return r.direct(r.startStandIn(ctx, standInCopies, copyConfig{r.certified, to}).addresses, copiesName)
}

func runCopies(ctx context.Context, cfg copyConfig, ready readyFunc) error {
	secure, err := cfg.client()
	if err != nil {
		return err
	}
	servers := map[string]server{}
	for name, to := range cfg.To {
		next := route{name: "the next process"}
		if to.IsSecure {
			next.tls = secure
		}
		servers[name] = server{cfg.certified, func(l net.Listener) error {
			return serveConnections(l, func(from net.Conn) { copyConnection(ctx, from, next, to.Address) })
		}}
	}
	return serveAll(ctx, servers, ready)
}

func copyConnection(ctx context.Context, from net.Conn, next route, address string) {
	if secure, is := from.(*tls.Conn); is && next.tls != nil {
		if secure.HandshakeContext(ctx) != nil {
			return
		}
		next.tls = next.tls.Clone()
		if protocol := secure.ConnectionState().NegotiatedProtocol; protocol != "" {
			next.tls.NextProtos = []string{protocol}
		}
	}
	if to, err := next.dial(ctx, address); err == nil {
		join(from, to)
		_ = to.Close() // nothing follows
	}
}

// copyBuffer is the size of a buffer.
const copyBuffer = 32 << 10

// join copies in both directions until one of them ends. It only reads and writes: a relay that inspects what it
// carries cannot use splice.
func join(a, b net.Conn) {
	ended := make(chan struct{}, 2)
	for _, ends := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			to, from := struct{ io.Writer }{ends[0]}, struct{ io.Reader }{ends[1]}
			_, _ = io.CopyBuffer(to, from, make([]byte, copyBuffer)) // an error is an end
			ended <- struct{}{}
		}()
	}
	<-ended
}

// serveConnections serves each connection until it is done.
func serveConnections(l net.Listener, serve func(net.Conn)) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer conn.Close() //nolint:errcheck // nothing follows
			serve(conn)
		}()
	}
}
