package webfront

import "sync"

const copyBufferSize = 32 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copyBufferSize]byte) }}

// bufferPool of the reverse proxy.
type bufferPool struct{}

// Get implements [httputil.BufferPool].
func (bufferPool) Get() []byte {
	return copyBuffers.Get().(*[copyBufferSize]byte)[:] //nolint:errcheck,forcetypeassert // the pool has nothing else
}

// Put implements [httputil.BufferPool].
func (bufferPool) Put(b []byte) { copyBuffers.Put((*[copyBufferSize]byte)(b)) }
