package tunnel

import (
	"container/list"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// defaultBudget is the default of [NewBudget] without a memory limit, in bytes.
const defaultBudget = 1 << 30

// Budget bounds the memory of data that was received and not read, for all sessions that share it. Above it, streams
// are reset, those first whose reader has not moved on for the longest time. Streams with at most 4 KiB of such data
// are not counted. A nil budget has no bound.
type Budget struct {
	max     int64
	onReset func()
	used    atomic.Int64

	mu sync.Mutex
	// waiting has the streams that count, those that wait longest first.
	waiting list.List
}

// NewBudget makes a budget of bytes. 0 is half of Go's memory limit, or 1 GiB without one. onReset is called when the
// budget resets a stream; it may be nil.
func NewBudget(bytes int64, onReset func()) *Budget {
	if bytes == 0 {
		bytes = defaultBudget
		if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
			bytes = limit / 2
		}
	}
	return &Budget{max: bytes, onReset: onReset}
}

// Used returns the bytes that are counted.
func (b *Budget) Used() int { return int(b.used.Load()) }

// count counts the buffers of a stream with this many unread bytes. moved reports whether its reader has moved on. It
// is called with st.mu held.
func (b *Budget) count(st *Stream, unread int, moved bool) {
	if b == nil || st.uncounted {
		return
	}
	size := 0
	if unread > 0 { // a buffer does not shrink before it is empty
		size = max(st.counted, bufferSize(unread))
	}
	moved = moved && size > 0
	if size == st.counted && !moved {
		return
	}
	b.used.Add(int64(size - st.counted))
	b.mu.Lock()
	switch {
	case size == 0:
		b.waiting.Remove(st.waiting)
		st.waiting = nil
	case st.waiting == nil:
		st.waiting = b.waiting.PushBack(st)
	case moved:
		b.waiting.MoveToBack(st.waiting)
	}
	b.mu.Unlock()
	st.counted = size
}

// forget no longer counts a stream: it releases its buffers, and receives no more. It is called with st.mu held.
func (b *Budget) forget(st *Stream) {
	b.count(st, 0, false)
	st.uncounted = true
}

// enforce resets streams while they use more than the budget. It is called without any st.mu held.
func (b *Budget) enforce() {
	for b != nil && b.used.Load() > b.max {
		b.mu.Lock()
		longest := b.waiting.Front()
		b.mu.Unlock()
		if longest == nil {
			return
		}
		longest.Value.(*Stream).evict() //nolint:errcheck,forcetypeassert // the list has nothing else
		if b.onReset != nil {
			b.onReset()
		}
	}
}

var errUnread = &ResetError{
	Reason: Cancelled, Text: "too many bytes of all streams are unread, and those of this stream waited longest",
}

// evict resets the stream, and drops what was not read.
func (st *Stream) evict() {
	st.mu.Lock()
	st.s.cfg.Budget.forget(st)
	st.in, st.at = shrink(st.in), 0
	st.setErr(errUnread)
	st.mu.Unlock()
	st.s.remove(st)
	if err := st.s.post(frameHeader{kind: frameReset, stream: st.id}, errUnread.encode()); err != nil {
		st.s.fail(err)
	}
}
