package api

import (
	"context"

	"lockstep.internal/libs/apirequest"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// maxRequest is the maximum size of an uncompressed request, in bytes.
	maxRequest = 1 << 20
	// maxStats is the maximum number of concurrent GetStats calls. Each may read the whole history, and the reader and the
	// sinks need the database too.
	maxStats = 2
)

// limits of requests. Handlers of streaming calls check them.
func limits() apirequest.Limits {
	const maxText, maxEntries = 4096, 100
	return apirequest.Limits{
		Text: maxText, Entries: maxEntries, Timeout: apirequest.DefaultTimeout, Advice: "use a narrower filter",
	}
}

// semaphore limits concurrent calls.
type semaphore chan struct{}

// acquire waits for a slot and returns the function that releases it.
func (t semaphore) acquire(ctx context.Context) (func(), error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), errcode.ResourceExhausted, "too many statistics requests: retry later")
	}
}
