package cursor

import (
	"context"
	"time"
)

// OnCommitted sets a function that is called after each commit. An error from it simulates a crash.
func (c *Consumer[T]) OnCommitted(f func() error) { c.hooks.committed = f }

// OnWaiting sets a function that is called before the consumer waits for the lock.
func (c *Consumer[T]) OnWaiting(f func()) { c.hooks.waiting = f }

// SetIdleTimeout sets how long a replay waits for a message before it checks for the end of the stream.
func (c *Consumer[T]) SetIdleTimeout(d time.Duration) { c.hooks.idle = d }

// SetSleep sets the function that pauses before a message alone is tried again, and the clock that limits the pauses.
func (c *Consumer[T]) SetSleep(sleep func(context.Context, time.Duration) error, now func() time.Time) {
	c.hooks.sleep, c.hooks.now = sleep, now
}
