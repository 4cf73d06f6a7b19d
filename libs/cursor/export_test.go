package cursor

import "time"

// OnCommitted is called between a commit and whatever follows it; an error ends the session there,
// as a crash does.
func (c *Consumer[T]) OnCommitted(f func() error) { c.hooks.committed = f }

// OnWaiting is called before the consumer asks for the lock.
func (c *Consumer[T]) OnWaiting(f func()) { c.hooks.waiting = f }

// ImpatientAfter is how long a replay waits for a message before it asks whether any is left.
func (c *Consumer[T]) ImpatientAfter(d time.Duration) { c.hooks.idle = d }
