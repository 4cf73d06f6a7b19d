package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// caller is a client with a connection of its own.
type caller interface {
	io.Closer
	// call sends a request and reads the response.
	call() error
}

// load runs callers at once, each of which calls again and again. It returns calls per second, and the 99th percentile
// of their latencies in milliseconds.
func load(ctx context.Context, callers int, turn time.Duration, connect func() caller) (perSecond, p99 float64) {
	all := make([]caller, callers)
	for i := range all {
		all[i] = connect()
		defer all[i].Close() //nolint:errcheck // nothing follows
	}
	w := newWindow(turn)
	counters := make([]*counter, callers)
	latencies := make([][]float64, callers)
	var group errgroup.Group
	for i, c := range all {
		counters[i] = &counter{window: w}
		group.Go(func() error {
			for {
				began := time.Now()
				if err := c.call(); err != nil {
					return err
				}
				before, ended := counters[i].count, time.Now()
				goesOn := counters[i].add(1, ended)
				if counters[i].count > before {
					latencies[i] = append(latencies[i], milliseconds(ended.Sub(began)))
				}
				if !goesOn {
					return nil
				}
			}
		})
	}
	check(interrupted(ctx, group.Wait()))
	var flat []float64
	for _, l := range latencies {
		flat = append(flat, l...)
	}
	return rate(counters...), percentile(flat, 99)
}

// interrupted returns the cause of ctx instead of an error that follows from it.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	return err
}

// httpCaller uses little of the processor, which it shares with what is measured.
type httpCaller struct {
	net.Conn

	route   route
	request []byte
	reader  *bufio.Reader
}

func (r route) newHTTPCaller(ctx context.Context) *httpCaller {
	conn := must(r.dial(ctx, r.http))
	return &httpCaller{Conn: conn, route: r, request: r.httpRequest(), reader: bufio.NewReader(conn)}
}

func (c *httpCaller) call() error {
	status, n, err := c.get()
	if err == nil && (status != http.StatusOK || n != responseSize) {
		err = fmt.Errorf("status %d with %d bytes", status, n)
	}
	if err != nil {
		return fmt.Errorf("request through %s: %w", c.route.name, err)
	}
	return nil
}

// get returns the status and the length of the response.
func (c *httpCaller) get() (status int, n int64, err error) {
	if _, err := c.Write(c.request); err != nil {
		return 0, 0, err //nolint:wrapcheck // call wraps it
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return 0, 0, err //nolint:wrapcheck // call wraps it
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	n, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, n, err //nolint:wrapcheck // call wraps it
}

// awaitTarget waits until the target responds: a relay may not know the agent yet.
func (r route) awaitTarget(ctx context.Context) {
	c := r.newHTTPCaller(ctx)
	defer c.Close() //nolint:errcheck // nothing follows
	await(ctx, c.call)
	if r.kube == "" {
		return
	}
	k := r.newKubeCaller(ctx, listPods)
	defer k.Close() //nolint:errcheck // nothing follows
	await(ctx, k.call)
}

// await repeats fn until it succeeds.
func await(ctx context.Context, fn func() error) {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for err := fn(); err != nil; err = fn() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			check(interrupted(ctx, err))
		}
	}
}

// openTime opens streams one after another. It returns the median time until the first byte is echoed, in milliseconds.
func (r route) openTime(ctx context.Context, turn time.Duration) float64 {
	var times []float64
	for until := time.Now().Add(turn); len(times) < leastTurns || time.Now().Before(until); {
		began := time.Now()
		conn := must(r.open(ctx))
		must(conn.Write([]byte{opEcho}))
		must(io.ReadFull(conn, make([]byte, 1)))
		times = append(times, milliseconds(time.Since(began)))
		_ = conn.Close() // nothing follows
	}
	return median(times)
}

// transfer transfers bytes over streams at once and returns million bytes per second. The target confirms each block
// that it received.
func (r route) transfer(ctx context.Context, turn time.Duration, streams int, isDown bool) float64 {
	conns := make([]net.Conn, streams)
	for i := range conns {
		conns[i] = must(r.open(ctx))
		defer conns[i].Close() //nolint:errcheck // nothing follows
	}
	w := newWindow(turn)
	counters := make([]*counter, streams)
	var group errgroup.Group
	for i, conn := range conns {
		counters[i] = &counter{window: w}
		group.Go(func() error {
			defer conn.Close() //nolint:errcheck // ends the writer
			op, bytesPerByte := byte(opDown), 1
			if !isDown {
				op, bytesPerByte = opUp, blockSize
			}
			if _, err := conn.Write([]byte{op}); err != nil {
				return fmt.Errorf("transfer through %s: %w", r.name, err)
			}
			if !isDown {
				group.Go(func() error {
					writeBlocks(conn)
					return nil
				})
			}
			buffer := make([]byte, blockSize)
			for {
				n, err := conn.Read(buffer)
				if err != nil {
					return fmt.Errorf("transfer through %s: %w", r.name, err)
				}
				if !counters[i].add(n*bytesPerByte, time.Now()) {
					return nil
				}
			}
		})
	}
	check(interrupted(ctx, group.Wait()))
	return rate(counters...) / 1e6
}
