package tunnel

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// directWriter writes received data to the destination of a [Stream.WriteTo] that waits for data. The session's reader
// uses it, so that no other goroutine has to wake up. It never blocks: nobody else writes to the destination then.
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
	c, is := w.(syscall.Conn)
	if !is {
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

// tryWrite returns true: it is not called again.
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
