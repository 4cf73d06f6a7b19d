package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
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

// asks has clients of one connection each ask again and again: first unmeasured, then for the time that counts. The client is as cheap as can be, since it shares the machine with what is
// measured.
func (w way) asks(ctx context.Context, clients int, warming, counting time.Duration) (load, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conns := make([]net.Conn, 0, clients)
	defer func() {
		for _, conn := range conns {
			_ = conn.Close() // nothing follows
		}
	}()
	for range clients {
		conn, err := w.ask(ctx)
		if err != nil {
			return load{}, err
		}
		conns = append(conns, conn)
	}
	var (
		request = w.request()
		from    = time.Now().Add(warming)
		until   = from.Add(counting)
		all     = make([]answers, clients)
		asking  sync.WaitGroup
	)
	for i, conn := range conns {
		asking.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer stop()
			var err error
			if all[i], err = ask(conn, request, from, until); err != nil {
				cancel(fmt.Errorf("ask through %s: %w", w.name, err)) // the first is the cause
			}
		})
	}
	asking.Wait()
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

// ask asks one time after the other. Answers count that come from one time until another; one does, however late it comes.
func ask(conn net.Conn, request []byte, from, until time.Time) (answers, error) {
	reader := bufio.NewReaderSize(conn, 4<<10)
	var a answers
	for {
		began := time.Now()
		if began.After(until) && len(a.took) > 0 {
			return a, nil
		}
		if _, err := conn.Write(request); err != nil {
			return a, fmt.Errorf("send: %w", err)
		}
		if err := readResponse(reader); err != nil {
			return a, err
		}
		if ended := time.Now(); ended.After(from) && (!ended.After(until) || len(a.took) == 0) {
			a.took, a.last = append(a.took, ended.Sub(began)), ended
		}
	}
}

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
		return errors.New("the answer is not of the length that it should have, or does not say it")
	}
	if _, err := reader.Discard(length); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}
