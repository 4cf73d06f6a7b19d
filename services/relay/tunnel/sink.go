package tunnel

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// sink is a connection that a stream is written to. While nothing of the stream waits, who reads the session writes what comes straight to it, and wakes nobody: see [Stream.deliver].
// Nobody else may write to the connection then, so that there is nothing to wait for.
type sink struct {
	raw syscall.RawConn
	// try is attempt, made a function once.
	try func(fd uintptr) bool

	data    []byte // to be written
	n       int    // written of it
	failed  error  // why
	written int64
}

// newSink is nil for what has no file descriptor of its own.
func newSink(w io.Writer) *sink {
	c, is := w.(syscall.Conn)
	if !is {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	s := &sink{raw: raw}
	s.try = s.attempt
	return s
}

// put writes what the connection takes at once, and returns how much that was. That it was not all is no failure; a failure stays.
func (s *sink) put(data []byte) int {
	s.data, s.n = data, 0
	if err := s.raw.Write(s.try); err != nil {
		s.failed = err
	}
	s.data = nil
	s.written += int64(s.n)
	return s.n
}

// attempt never asks to be called again.
func (s *sink) attempt(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), s.data)
		switch {
		case err == nil:
			s.n = n
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EAGAIN):
			s.failed = os.NewSyscallError("write", err)
		}
		return true
	}
}
