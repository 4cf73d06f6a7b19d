package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// load is what clients that ask all the time saw.
type load struct {
	perSecond float64
	p99       float64 // milliseconds
}

// ask has clients of one connection each ask again and again: first unmeasured, then for the time that counts. The client is as cheap as can be, since it shares the machine with what is
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
		all     = make([][]time.Duration, clients)
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
		return load{}, context.Cause(ctx)
	}
	took := slices.Concat(all...)
	if len(took) == 0 {
		return load{}, fmt.Errorf("ask through %s: no answer came within %s", w.name, counting)
	}
	latencies := make([]float64, len(took))
	for i, d := range took {
		latencies[i] = milliseconds(d)
	}
	return load{perSecond: float64(len(took)) / counting.Seconds(), p99: percentile(latencies, 99)}, nil
}

// ask asks one time after the other, and returns how long those took whose answers came when it counts.
func ask(conn net.Conn, request []byte, from, until time.Time) ([]time.Duration, error) {
	reader := bufio.NewReaderSize(conn, 4<<10)
	var took []time.Duration
	for {
		began := time.Now()
		if began.After(until) {
			return took, nil
		}
		if _, err := conn.Write(request); err != nil {
			return nil, fmt.Errorf("send: %w", err)
		}
		if err := readResponse(reader); err != nil {
			return nil, err
		}
		ended := time.Now()
		if ended.After(from) && !ended.After(until) {
			took = append(took, ended.Sub(began))
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
