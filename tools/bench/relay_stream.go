package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
)

// Directions of bulk, as the caller sees it.
const (
	down = true
	up   = false
)

// carries transfers bytes over new streams at once, each its part, and returns how many million bytes a second that were. Some go before, unmeasured, so that windows are open.
func (w way) carries(ctx context.Context, streams int, down bool, first, counted int64) (float64, error) {
	conns := make([]net.Conn, 0, streams)
	defer func() {
		for _, conn := range conns {
			_ = conn.Close() // nothing follows
		}
	}()
	for range streams {
		conn, err := w.open(ctx)
		if err != nil {
			return 0, err
		}
		conns = append(conns, conn)
	}
	payload := noise(bulkBuffer)
	var took time.Duration
	for _, n := range []int64{first, counted} {
		began := time.Now()
		group, carrying := errgroup.WithContext(ctx)
		for _, conn := range conns {
			group.Go(func() error {
				stop := context.AfterFunc(carrying, func() { _ = conn.Close() })
				defer stop()
				return carry(conn, payload, down, n/int64(streams))
			})
		}
		if err := group.Wait(); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return 0, fmt.Errorf("carry bulk through %s: %w", w.name, err)
		}
		took = time.Since(began)
	}
	return float64(counted) / 1e6 / took.Seconds(), nil
}

func carry(conn net.Conn, payload []byte, down bool, n int64) error {
	op := byte(opTake)
	if down {
		op = opSend
	}
	if _, err := conn.Write(bulkRequest(op, n)); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	if down {
		return readBulk(conn, n)
	}
	if err := writeBulk(conn, payload, n); err != nil {
		return err
	}
	return hear(conn, opTake)
}

// echo asks the target to answer.
func echo(conn net.Conn) error {
	if _, err := conn.Write([]byte{opEcho}); err != nil {
		return fmt.Errorf("ask for an echo: %w", err)
	}
	return hear(conn, opEcho)
}

func hear(conn net.Conn, want byte) error {
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return fmt.Errorf("wait for an answer: %w", err)
	}
	if answer[0] != want {
		return fmt.Errorf("the answer is %q instead of %q", answer[0], want)
	}
	return nil
}

// opens streams one after the other for a while, and returns the median of how many milliseconds each took until its first byte was answered.
func (w way) opens(ctx context.Context, duration time.Duration) (float64, error) {
	const least = 5
	var took []float64
	for began := time.Now(); len(took) < least || time.Since(began) < duration; {
		opening := time.Now()
		conn, err := w.open(ctx)
		if err != nil {
			return 0, err
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		err = echo(conn)
		took = append(took, milliseconds(time.Since(opening)))
		stop()
		_ = conn.Close() // nothing follows
		if err != nil {
			return 0, fmt.Errorf("open a stream through %s: %w", w.name, err)
		}
	}
	return median(took), nil
}
