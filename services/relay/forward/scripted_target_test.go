package forward_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
)

// scriptedTarget sends a fixed response to every request, except to /plain, and keeps the last request.
type scriptedTarget struct {
	response   string
	byteByByte bool
	closes     bool // closes the connection after the response

	mu   sync.Mutex
	last string
}

func (s *scriptedTarget) start(t *testing.T) string { return listenAndServe(t, s.serve) }

func (s *scriptedTarget) serve(conn net.Conn) {
	var head bytes.Buffer
	reader := bufio.NewReader(conn)
	for {
		head.Reset()
		line := ""
		for line != "\r\n" {
			var err error
			if line, err = reader.ReadString('\n'); err != nil {
				return
			}
			head.WriteString(line)
		}
		request, err := http.ReadRequest(bufio.NewReader(io.MultiReader(&head, reader)))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(reader, max(request.ContentLength, 0)))
		if request.URL.Path == "/plain" {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain")
			continue
		}
		s.mu.Lock()
		s.last = fmt.Sprintf("%s %s %s %v", request.Method, request.RequestURI, request.Host, request.Header)
		s.mu.Unlock()
		step := len(s.response)
		if s.byteByByte {
			step = 1
		}
		for at := 0; at < len(s.response); at += step {
			if _, err := io.WriteString(conn, s.response[at:at+step]); err != nil {
				return
			}
		}
		if s.closes {
			return
		}
	}
}

func (s *scriptedTarget) lastRequest() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}
