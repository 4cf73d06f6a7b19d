package tunnel

import "sync"

const (
	// smallBuffer is the largest buffer of an idle stream, in bytes.
	smallBuffer = 4 << 10
	// mediumBuffer and largeBuffer are pooled. The large one is a default window.
	mediumBuffer = 64 << 10
	largeBuffer  = 512 << 10
)

var (
	mediumBuffers = sync.Pool{New: func() any { return new([mediumBuffer]byte) }}
	largeBuffers  = sync.Pool{New: func() any { return new([largeBuffer]byte) }}
)

// grow returns a buffer with b[at:] and capacity for n more bytes.
func grow(b []byte, at, n int) (grown []byte, begin int) {
	need := len(b) - at + n
	switch {
	case len(b)+n <= cap(b):
		return b, at
	case need <= cap(b):
		return b[:copy(b, b[at:])], 0
	case need <= smallBuffer:
		grown = make([]byte, 0, smallBuffer)
	case need <= mediumBuffer:
		grown = mediumBuffers.Get().(*[mediumBuffer]byte)[:0] //nolint:errcheck,forcetypeassert // the pool has nothing else
	case need <= largeBuffer:
		grown = largeBuffers.Get().(*[largeBuffer]byte)[:0] //nolint:errcheck,forcetypeassert // the pool has nothing else
	default: // a configured window may be larger than the default
		grown = make([]byte, 0, 2*need)
	}
	grown = append(grown, b[at:]...)
	shrink(b)
	return grown, 0
}

// bufferSize is the size of the buffer that n bytes need, 0 if that is a small one.
func bufferSize(n int) int {
	switch {
	case n <= smallBuffer:
		return 0
	case n <= mediumBuffer:
		return mediumBuffer
	case n <= largeBuffer:
		return largeBuffer
	}
	return 2 * n
}

// shrink empties a buffer, and returns a large one to its pool.
func shrink(b []byte) []byte {
	switch {
	case cap(b) <= smallBuffer:
		return b[:0]
	case cap(b) == mediumBuffer:
		mediumBuffers.Put((*[mediumBuffer]byte)(b[:mediumBuffer]))
	case cap(b) == largeBuffer:
		largeBuffers.Put((*[largeBuffer]byte)(b[:largeBuffer]))
	}
	return nil
}
