package tunnel

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// directWriter lets the session's reader write small frames to the destination socket itself, without waking
// the WriteTo goroutine. It never blocks. It is used only while WriteTo waits, so there is one writer.
type directWriter struct {
	raw syscall.RawConn
	// attempt is tryWrite, as a function that is allocated once.
	attempt func(fd uintptr) bool

	data    []byte // to be written
	n       int    // written of data
	err     error
	written int64
}

// newDirectWriter returns nil if w has no file descriptor.
func newDirectWriter(w io.Writer) *directWriter {
	c, ok := w.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	d := &directWriter{raw: raw}
	d.attempt = d.tryWrite
	return d
}

// write writes what the connection accepts without blocking, and returns how much that was.
func (d *directWriter) write(data []byte) int {
	d.data, d.n = data, 0
	if err := d.raw.Write(d.attempt); err != nil {
		d.err = err
	}
	d.data = nil
	d.written += int64(d.n)
	return d.n
}

// tryWrite writes what the socket accepts. It returns true so that RawConn.Write does not wait for writability.
func (d *directWriter) tryWrite(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), d.data)
		switch {
		case err == nil:
			d.n = n
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EAGAIN):
			d.err = os.NewSyscallError("write", err)
		}
		return true
	}
}
