package cursor

import "time"

// OnCommitted sets a function that is called after each commit. An error from it simulates a crash.
func (c *Consumer[T]) OnCommitted(f func() error) { c.hooks.committed = f }

// OnWaiting sets a function that is called before the consumer waits for the lock.
func (c *Consumer[T]) OnWaiting(f func()) { c.hooks.waiting = f }

// SetIdleTimeout sets how long a replay waits for a message before it checks for the end of the stream.
func (c *Consumer[T]) SetIdleTimeout(d time.Duration) { c.hooks.idle = d }
