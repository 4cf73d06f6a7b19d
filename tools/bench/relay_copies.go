package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
)

// A route through processes that only copy bytes from one connection to another shows what so many processes cost,
// whatever they do. They know no agents and have a connection for each of the client's, so they are no relay.

// copyConfig configures a child that copies. Its callers use TLS if there is a certificate.
type copyConfig struct {
	certified

	// HTTP, Stream and Kube are the addresses to copy to.
	HTTP, Stream, Kube string
	// IsSecure is true if HTTP and Stream use TLS; Kube always does if there is a certificate.
	IsSecure bool
}

// copyBuffer is the size of a buffer.
const copyBuffer = 32 << 10

func runCopies(ctx context.Context, cfg copyConfig, ready readyFunc) error {
	secure, err := cfg.client()
	if err != nil {
		return err
	}
	to := route{name: "the next process"}
	if cfg.IsSecure {
		to.tls = secure
	}
	toKube := route{name: "the next process", tls: secure}
	http, errHTTP := cfg.listen()
	stream, errStream := cfg.listen()
	kube, errKube := cfg.listen(httpProtocols()...)
	if err := errors.Join(errHTTP, errStream, errKube); err != nil {
		return err
	}
	copyTo := func(to route, address string) func(net.Listener) error {
		return func(l net.Listener) error { return copyAll(ctx, l, to, address) }
	}
	return serveAll(ctx, map[string]server{
		targetHTTP: {http, copyTo(to, cfg.HTTP)}, targetStream: {stream, copyTo(to, cfg.Stream)},
		targetKube: {kube, copyTo(toKube, cfg.Kube)},
	}, ready)
}

func copyAll(ctx context.Context, l net.Listener, to route, address string) error {
	for {
		from, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer from.Close() //nolint:errcheck // nothing follows
			to := to
			if secure, is := from.(*tls.Conn); is && to.tls != nil {
				if secure.HandshakeContext(ctx) != nil {
					return
				}
				to.tls = to.tls.Clone()
				if protocol := secure.ConnectionState().NegotiatedProtocol; protocol != "" {
					to.tls.NextProtos = []string{protocol}
				}
			}
			conn, err := to.dial(ctx, address)
			if err != nil {
				return
			}
			defer conn.Close() //nolint:errcheck // nothing follows
			join(from, conn)
		}()
	}
}

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

// copies returns the route through as many processes as Lockstep's has: a relay and an agent.
func (r *relayFixture) copies(ctx context.Context) route {
	addresses, isSecure := r.target.addresses, false
	for range 2 {
		addresses = r.startConfigured(ctx, childCopies, copyConfig{
			certified: r.certified, HTTP: addresses[targetHTTP], Stream: addresses[targetStream], Kube: addresses[targetKube],
			IsSecure: isSecure,
		}).addresses
		isSecure = r.tls != nil
	}
	to := route{
		name: copiesName, http: addresses[targetHTTP], stream: addresses[targetStream], caFile: r.CAFile, tls: r.tls,
	}
	if r.tls != nil {
		to.kube = addresses[targetKube]
	}
	return to
}
