package artifact

import (
	"context"
	"errors"
	"io"
)

// windowSize is how much is read from the store at once, in bytes. A read is a request there.
const windowSize = 1 << 20

// window reads an object in large pieces and keeps the last one. It knows the errors of the store from those of the
// format. It is not safe for concurrent use.
type window struct {
	source io.ReaderAt
	size   int64
	ended  func() error

	buffer []byte
	offset int64 // of the buffer
	// reads and loads are how many bytes may still be read, and may still be requested from the store.
	reads, loads int64
	// spent reports that reading was ended by a budget.
	spent bool
	err   error
}

// errBudget ends reading when a budget is spent.
var errBudget = errors.New("too much to read")

func newWindow(ctx context.Context, source io.ReaderAt, size int64) *window {
	return &window{source: source, size: size, ended: ctx.Err}
}

// allow sets the budgets for reading n bytes, in some order that is almost that of the file.
func (w *window) allow(n int64) { w.reads, w.loads = n, n+4*windowSize }

// ReadAt implements [io.ReaderAt].
func (w *window) ReadAt(p []byte, offset int64) (int, error) {
	total := 0
	for total < len(p) {
		n, err := w.readAt(p[total:], offset+int64(total))
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (w *window) readAt(p []byte, offset int64) (int, error) {
	if offset < 0 || offset >= w.size {
		return 0, io.EOF
	}
	if w.reads <= 0 {
		w.spent = true
		return 0, errBudget
	}
	if offset < w.offset || offset >= w.offset+int64(len(w.buffer)) {
		if err := w.load(offset - offset%windowSize); err != nil {
			return 0, err
		}
	}
	n := copy(p, w.buffer[offset-w.offset:])
	w.reads -= int64(n)
	return n, nil
}

// load reads the window that begins at start.
func (w *window) load(start int64) error {
	if w.err = w.ended(); w.err != nil {
		return w.err
	}
	length := min(windowSize, w.size-start)
	if w.loads -= length; w.loads < 0 {
		w.spent = true
		return errBudget
	}
	if w.buffer == nil {
		w.buffer = make([]byte, min(windowSize, w.size))
	}
	w.buffer, w.offset = w.buffer[:length], start
	n, err := w.source.ReadAt(w.buffer, start)
	if int64(n) == length {
		return nil
	}
	w.buffer = w.buffer[:0]
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // the object is shorter than it was
	}
	w.err = err
	return err
}
