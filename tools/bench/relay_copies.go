package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
)

// What a way of so many processes costs whatever they do: each only copies bytes from one connection to another. They dial where a relay is dialled, know no agents, and have a connection for
// each of the client's, so they are no relay; but they say how near to the least it is.

// copies is what one that copies is started with: where it copies to, and whether it speaks TLS there. Its callers speak TLS to it where there is a certificate.
type copies struct {
	certified

	HTTP, Stream, Kube string
	Secure             bool
}

func serveCopies(cfg copies, signals <-chan os.Signal, ready func(map[string]string)) error {
	var secure *tls.Config
	if cfg.Secure {
		var err error
		if secure, err = cfg.client(); err != nil {
			return err
		}
	}
	addrs := map[string]string{}
	failed := make(chan error, 3)
	for name, to := range map[string]string{targetHTTP: cfg.HTTP, targetStream: cfg.Stream, targetKube: cfg.Kube} {
		var protocols []string
		secure := secure
		if name == targetKube && cfg.CertFile != "" {
			protocols = httpProtocols
			var err error
			if secure, err = cfg.client(); err != nil {
				return err
			}
		}
		l, err := cfg.listen(loopback, protocols...)
		if err != nil {
			return err
		}
		addrs[name] = l.Addr().String()
		go func() { failed <- copyAll(l, way{name: "the next", http: to, tls: secure}) }()
	}
	ready(addrs)
	select {
	case err := <-failed:
		return err
	case <-signals:
		return nil
	}
}

func copyAll(l net.Listener, to way) error {
	for {
		from, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer from.Close() //nolint:errcheck // it is over
			to := to
			if secure, is := from.(*tls.Conn); is && to.tls != nil {
				if secure.Handshake() != nil { //nolint:noctx // it ends with the connection
					return
				}
				to.tls = to.tls.Clone()
				if protocol := secure.ConnectionState().NegotiatedProtocol; protocol != "" {
					to.tls.NextProtos = []string{protocol}
				}
			}
			conn, err := to.ask(context.Background())
			if err != nil {
				return
			}
			defer conn.Close() //nolint:errcheck // it is over
			ended := make(chan struct{}, 2)
			for _, ends := range [][2]net.Conn{{from, conn}, {conn, from}} {
				go func() {
					// Only reads and writes: what the system can do between two of its connections in plaintext no relay can that looks at what it carries.
					_, _ = io.CopyBuffer(struct{ io.Writer }{ends[0]}, struct{ io.Reader }{ends[1]}, make([]byte, copyBuffer)) // either end is the end
					ended <- struct{}{}
				}()
			}
			<-ended
		}()
	}
}

// copied is the way through as many that copy as there are relays and agents on ours.
func (b *relayBed) copied(ctx context.Context, hops int) (way, error) {
	next := copies{certified: b.certified, HTTP: b.target.addrs[targetHTTP], Stream: b.target.addrs[targetStream], Kube: b.target.addrs[targetKube]}
	for range hops + 1 {
		c, err := b.start(ctx, childCopies, next)
		if err != nil {
			return way{}, err
		}
		next.HTTP, next.Stream, next.Kube, next.Secure = c.addrs[targetHTTP], c.addrs[targetStream], c.addrs[targetKube], b.tls != nil
	}
	return way{name: copiesName, http: next.HTTP, stream: next.Stream, kube: next.Kube, caFile: b.CAFile, tls: b.tls}, nil
}
