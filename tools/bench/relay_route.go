package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// route is a route to the target.
type route struct {
	name string
	// http and stream are the addresses for requests and streams. path is the path of the agent at a relay; empty without.
	http, stream, path string
	// kube is the host and path of the Kubernetes API, over TLS; token and caFile are for its clients.
	kube, token, caFile string
	// tls is nil for plaintext.
	tls *tls.Config
}

// dial connects to an address. The connection closes when ctx is done.
func (r route) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", r.name, err)
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	if r.tls == nil {
		return conn, nil
	}
	secure := tls.Client(conn, r.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", r.name, err), conn.Close())
	}
	return secure, nil
}

// request returns the head of a request.
func (r route) request(path, host, header string) []byte {
	if r.token != "" {
		header += "Authorization: Bearer " + r.token + "\r\n"
	}
	return []byte("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + header + "\r\n")
}

// open opens a stream to the target, which sends nothing first.
func (r route) open(ctx context.Context) net.Conn {
	conn := must(r.dial(ctx, r.stream))
	if r.path == "" {
		return conn
	}
	must(conn.Write(r.request(r.path+"/tcp/"+targetStream, r.stream, "Connection: Upgrade\r\nUpgrade: tcp\r\n")))
	response := must(http.ReadResponse(bufio.NewReaderSize(conn, 1<<10), nil)) //nolint:bodyclose // closed below
	check(response.Body.Close())
	if response.StatusCode != http.StatusSwitchingProtocols {
		check(fmt.Errorf("open a stream through %s: %s", r.name, response.Status))
	}
	return conn
}

// awaitTarget waits until the target responds: a relay may not know the agent yet.
func (r route) awaitTarget(ctx context.Context) {
	callers := []caller{r.connectHTTP(ctx)}
	if r.kube != "" {
		callers = append(callers, r.connectKube(ctx, getPod))
	}
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for _, c := range callers {
		defer c.Close() //nolint:errcheck // nothing follows
		for err := c.call(); err != nil; err = c.call() {
			check(interrupted(ctx))
			<-poll.C
		}
	}
}

// interrupted returns the cause when ctx is done. Other errors may follow from it.
func interrupted(ctx context.Context) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	return nil
}

// caller is a client with a connection of its own.
type caller interface {
	io.Closer
	// call sends a request and reads the response.
	call() error
}

// load runs callers at once, each of which calls again and again. It returns calls per second, and the 99th percentile
// of their latencies.
func load(ctx context.Context, r route, callers int, turn time.Duration, connect func() caller) []float64 {
	all := make([]caller, callers)
	for i := range all {
		all[i] = connect()
		defer all[i].Close() //nolint:errcheck // nothing follows
	}
	m := newMeter(turn)
	var group errgroup.Group
	for _, c := range all {
		group.Go(func() error {
			for goesOn := true; goesOn; {
				began := time.Now()
				if err := c.call(); err != nil {
					return fmt.Errorf("request through %s: %w", r.name, err)
				}
				goesOn = m.add(1, began, time.Now())
			}
			return nil
		})
	}
	err := group.Wait()
	check(interrupted(ctx))
	check(err)
	return []float64{m.rate(), percentile(m.latencies, 99)}
}

// requests measures HTTP requests by n clients.
func requests(n int) func(context.Context, route, time.Duration) []float64 {
	return func(ctx context.Context, r route, turn time.Duration) []float64 {
		return load(ctx, r, n, turn, func() caller { return r.connectHTTP(ctx) })
	}
}

// httpCaller uses little of the processor, which it shares with what is measured.
type httpCaller struct {
	net.Conn

	request []byte
	reader  *bufio.Reader
}

func (r route) connectHTTP(ctx context.Context) caller {
	conn, path := must(r.dial(ctx, r.http)), "/x"
	if r.path != "" {
		path = r.path + "/http/" + targetHTTP + path
	}
	return &httpCaller{Conn: conn, request: r.request(path, r.http, ""), reader: bufio.NewReader(conn)}
}

func (c *httpCaller) call() error {
	if _, err := c.Write(c.request); err != nil {
		return err //nolint:wrapcheck // load wraps it
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return err //nolint:wrapcheck // load wraps it
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	n, err := io.Copy(io.Discard, response.Body)
	if err == nil && (response.StatusCode != http.StatusOK || n != responseSize) {
		err = fmt.Errorf("status %d with %d bytes", response.StatusCode, n)
	}
	return err
}

// openStreams opens streams one after another. It returns the median time until the first byte is echoed.
func openStreams(ctx context.Context, r route, turn time.Duration) []float64 {
	return repeat(turn, func() {
		conn := r.open(ctx)
		must(conn.Write([]byte{opEcho}))
		must(io.ReadFull(conn, make([]byte, 1)))
		check(conn.Close())
	})
}

// repeat repeats fn for a turn and returns the median time in milliseconds.
func repeat(turn time.Duration, fn func()) []float64 {
	var times []float64
	for until := time.Now().Add(turn); len(times) < leastTurns || time.Now().Before(until); {
		began := time.Now()
		fn()
		times = append(times, milliseconds(time.Since(began)))
	}
	return []float64{median(times)}
}

// transfer measures million bytes per second over streams at once. The target confirms each block that it received.
func transfer(op byte, streams int) func(context.Context, route, time.Duration) []float64 {
	return func(ctx context.Context, r route, turn time.Duration) []float64 {
		conns := make([]net.Conn, streams)
		for i := range conns {
			conns[i] = r.open(ctx)
			defer conns[i].Close() //nolint:errcheck // nothing follows
		}
		m := newMeter(turn)
		var group errgroup.Group
		for _, conn := range conns {
			group.Go(func() error {
				defer conn.Close() //nolint:errcheck // ends the writer
				_, err := conn.Write([]byte{op})
				bytesPerByte := 1
				if op == opUp {
					bytesPerByte = blockSize
					group.Go(func() error {
						writeBlocks(conn)
						return nil
					})
				}
				for buffer, goesOn := make([]byte, blockSize), true; goesOn && err == nil; {
					var n int
					n, err = conn.Read(buffer)
					now := time.Now()
					goesOn = m.add(n*bytesPerByte, now, now)
				}
				if err != nil {
					return fmt.Errorf("transfer through %s: %w", r.name, err)
				}
				return nil
			})
		}
		err := group.Wait()
		check(interrupted(ctx))
		check(err)
		return []float64{m.rate() / 1e6}
	}
}
