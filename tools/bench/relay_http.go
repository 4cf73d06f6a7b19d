package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// load is what clients that ask all the time saw.
type load struct {
	perSecond float64
	p99       float64 // milliseconds
}

// Kinds of HTTP figures, with which their names begin.
const (
	httpKind  = "http"
	httpsKind = "https"
)

// asking is HTTP figures of one kind.
type asking struct {
	kind string
	// connect makes a client, and levels are how many of them ask at once.
	connect func(way, context.Context) (asker, error)
	levels  []int
}

// plainAskings are those in plaintext. What depends on the client is measured through one relay only.
func plainAskings() []asking {
	return []asking{{kind: httpKind, connect: way.bare, levels: []int{1, 8, 32, 256}}}
}

// secureAskings are those over TLS, which are measured through one relay only.
func secureAskings(hops int) []asking {
	if hops > 1 {
		return nil
	}
	return []asking{{kind: httpsKind, connect: way.bare, levels: []int{1, 32}}}
}

// namesOf figures.
func namesOf(askings []asking) []string {
	var names []string
	for _, a := range askings {
		for _, n := range a.levels {
			names = append(names, httpRate(a.kind, n), httpTail(a.kind, n))
		}
	}
	return names
}

func measureHTTP(ctx context.Context, measured Measured, size Size, askings []asking, ways []way) error {
	for _, a := range askings {
		for _, n := range a.levels {
			if !size.wants(httpRate(a.kind, n), httpTail(a.kind, n)) {
				continue
			}
			counting := turnOf(size, len(ways))
			took, err := compare(ctx, size.For, ways, func(ctx context.Context, w way, _ int) ([]float64, error) {
				l, err := w.asks(ctx, a.connect, n, counting/warmingPart, counting)
				return []float64{l.perSecond, l.p99}, err
			})
			if err != nil {
				return err
			}
			measured[httpRate(a.kind, n)], measured[httpTail(a.kind, n)] = took.measurement(0), took.measurement(1)
		}
	}
	return nil
}

// asker is a client that keeps its connection. Closing it ends what it asks.
type asker interface {
	io.Closer
	// ask asks once, and reads the answer to its end.
	ask() error
}

// asks has clients ask again and again: first unmeasured, then for the time that counts.
func (w way) asks(ctx context.Context, connect func(way, context.Context) (asker, error), clients int, warming, counting time.Duration) (load, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	askers := make([]asker, 0, clients)
	defer func() {
		for _, a := range askers {
			_ = a.Close() // nothing follows
		}
	}()
	for range clients {
		a, err := connect(w, ctx)
		if err != nil {
			return load{}, err
		}
		askers = append(askers, a)
	}
	var (
		from    = time.Now().Add(warming)
		until   = from.Add(counting)
		all     = make([]answers, clients)
		running sync.WaitGroup
	)
	for i, a := range askers {
		running.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = a.Close() })
			defer stop()
			var err error
			if all[i], err = askFor(a, from, until); err != nil {
				cancel(fmt.Errorf("ask through %s: %w", w.name, err)) // the first is the cause
			}
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return load{}, fmt.Errorf("ask: %w", context.Cause(ctx))
	}
	var latencies []float64
	for _, a := range all {
		for _, d := range a.took {
			latencies = append(latencies, milliseconds(d))
		}
		if a.last.After(until) {
			until = a.last
		}
	}
	return load{perSecond: float64(len(latencies)) / until.Sub(from).Seconds(), p99: percentile(latencies, 99)}, nil
}

// answers of one client that count.
type answers struct {
	took []time.Duration
	last time.Time // when the last of them came
}

// askFor asks one time after the other. Answers count that come from one time until another; one does, however late it comes.
func askFor(who asker, from, until time.Time) (answers, error) {
	var a answers
	for {
		began := time.Now()
		if began.After(until) && len(a.took) > 0 {
			return a, nil
		}
		if err := who.ask(); err != nil {
			return a, err
		}
		if ended := time.Now(); ended.After(from) && (!ended.After(until) || len(a.took) == 0) {
			a.took, a.last = append(a.took, ended.Sub(began)), ended
		}
	}
}

// bareClient is as cheap as can be, since it shares the machine with what is measured.
type bareClient struct {
	net.Conn

	request []byte
	reader  *bufio.Reader
}

// bare connects a client that does no more than it must.
func (w way) bare(ctx context.Context) (asker, error) {
	conn, err := w.ask(ctx)
	if err != nil {
		return nil, err
	}
	return &bareClient{Conn: conn, request: w.request(), reader: bufio.NewReaderSize(conn, 4<<10)}, nil
}

func (c *bareClient) ask() error {
	if _, err := c.Write(c.request); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return readResponse(c.reader)
}

var errLength = errors.New("the answer is not of the length that it should have, or does not say it")

var (
	statusOK      = []byte("HTTP/1.1 200 ")
	contentLength = []byte("content-length:")
)

// readResponse reads a response of the size that all have, and looks at no more of it than that.
func readResponse(reader *bufio.Reader) error {
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if !bytes.HasPrefix(line, statusOK) {
		first := string(line)
		rest, _ := reader.Peek(reader.Buffered())
		return fmt.Errorf("it was answered: %.500s", first+string(rest))
	}
	length := -1
	for {
		if line, err = reader.ReadSlice('\n'); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if len(line) > len(contentLength) && bytes.EqualFold(line[:len(contentLength)], contentLength) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):]))); err != nil {
				return fmt.Errorf("read the answer: %w", err)
			}
		}
	}
	if length != responseSize {
		return errLength
	}
	if _, err := reader.Discard(length); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}
