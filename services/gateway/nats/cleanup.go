package nats

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
)

// cleanupRetry bounds the pauses after NATS has refused to forget a key.
var cleanupRetry = retry.Policy{Min: time.Second, Max: time.Minute}

// Cleanup forgets the host keys of deleted workspaces. It is safe for concurrent use.
type Cleanup struct {
	keys   HostKeys
	logger *slog.Logger
	added  chan struct{}

	mu      sync.Mutex
	pending map[string]struct{} // ids of workspaces
}

// NewCleanup returns a cleanup. Run does the work.
func NewCleanup(keys HostKeys, logger *slog.Logger) *Cleanup {
	return &Cleanup{keys: keys, logger: logger, added: make(chan struct{}, 1), pending: map[string]struct{}{}}
}

// Add forgets the key of a workspace soon. It does not wait.
func (c *Cleanup) Add(workspace string) {
	c.mu.Lock()
	c.pending[workspace] = struct{}{}
	c.mu.Unlock()
	select {
	case c.added <- struct{}{}:
	default: // Run looks again
	}
}

// Run forgets keys until ctx ends. Keys that are left then are forgotten after the next start: the messages of deleted
// workspaces are still there.
func (c *Cleanup) Run(ctx context.Context) {
	pause := cleanupRetry.Backoff()
	for ctx.Err() == nil {
		workspace, found := c.next()
		if !found {
			select {
			case <-c.added:
			case <-ctx.Done():
			}
			continue
		}
		if err := c.keys.Forget(ctx, workspace); err != nil {
			if ctx.Err() == nil {
				c.logger.WarnContext(ctx, "could not forget the host key of a deleted workspace; retrying",
					slog.String(logkey.WorkspaceID, workspace), logkey.Error(err))
			}
			_ = pause.Wait(ctx) // it returns an error only when ctx ends
			continue
		}
		pause = cleanupRetry.Backoff()
		c.mu.Lock()
		delete(c.pending, workspace)
		c.mu.Unlock()
	}
}

func (c *Cleanup) next() (workspace string, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for workspace = range c.pending {
		return workspace, true
	}
	return "", false
}
