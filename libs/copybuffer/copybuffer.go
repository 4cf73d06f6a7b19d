// Package copybuffer has the buffers with which reverse proxies copy bodies. All proxies of a process share them.
package copybuffer

import (
	"net/http/httputil"
	"sync"
)

// size is that of the buffers of [io.Copy].
const size = 32 << 10

var buffers = sync.Pool{New: func() any { return new([size]byte) }}

// Pool implements [httputil.BufferPool].
type Pool struct{}

var _ httputil.BufferPool = Pool{}

// Get returns a buffer of 32 KiB.
func (Pool) Get() []byte {
	return buffers.Get().(*[size]byte)[:] //nolint:errcheck,forcetypeassert // the pool has nothing else
}

// Put takes back a buffer of [Pool.Get].
func (Pool) Put(buffer []byte) { buffers.Put((*[size]byte)(buffer)) }
