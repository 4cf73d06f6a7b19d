package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// httpCall is a caller that sends a request again and again. It uses little of the processor, which it shares with what
// is measured.
type httpCall struct {
	net.Conn

	name   string
	next   func() []byte // makes the next request
	status int           // of a response
	// body gets the body of each response. Optional.
	body   func(data []byte) error
	reader *bufio.Reader
}

// connectHTTP connects a caller to an address. The connection closes when ctx is done.
func connectHTTP(ctx context.Context, name, address string, status int, next func() []byte) *httpCall {
	conn := must(new(net.Dialer).DialContext(ctx, "tcp", address))
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return &httpCall{Conn: conn, name: name, next: next, status: status, reader: bufio.NewReader(conn)}
}

// call sends a request and reads the response.
func (c *httpCall) call() error {
	if _, err := c.Write(c.next()); err != nil {
		return fmt.Errorf("send a request to %s: %w", c.name, err)
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return fmt.Errorf("read the response of %s: %w", c.name, err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	data, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fmt.Errorf("read the response of %s: %w", c.name, err)
	case response.StatusCode != c.status:
		return fmt.Errorf("%s responds with %s: %.200s", c.name, response.Status, data)
	case c.body != nil:
		return c.body(data)
	default:
		return nil
	}
}

// httpRequest returns the bytes of a request. The header has whole lines.
func httpRequest(method, path, header string, body []byte) []byte {
	head := method + " " + path + " HTTP/1.1\r\nHost: bench\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n" +
		header + "\r\n"
	return append([]byte(head), body...)
}

// callRate returns how many calls a second the callers make at once, each again and again, for a turn.
func callRate(ctx context.Context, name string, callers int, turn time.Duration, connect func(i int) caller) float64 {
	i := -1
	return load(ctx, route{name: name}, callers, turn, func() caller {
		i++
		return connect(i)
	})[0]
}

// turnOf is the duration of one turn of a comparison between two.
func turnOf(size Size) time.Duration { return max(size.For/(2*leastTurns), 20*time.Millisecond) }
