package api

import (
	"context"
	"sync"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// maxLookups is the maximum number of concurrent queries for tokens that were not valid before, and maxWaitingLookups
	// of those that wait. Any text of the right form is a token that costs a query.
	maxLookups        = 4
	maxWaitingLookups = 64
	// maxValidTokens limits the memory. A full set is cleared.
	maxValidTokens = 10_000
)

// tokenLookups bounds the queries for tokens. Tokens that were valid at the last query are not bounded, so a flood of
// invented ones does not delay those callers. It is safe for concurrent use.
type tokenLookups struct {
	slots chan struct{}

	mu      sync.Mutex
	waiting int
	valid   map[natsauth.TokenHash]struct{}
}

func newTokenLookups() *tokenLookups {
	return &tokenLookups{slots: make(chan struct{}, maxLookups), valid: map[natsauth.TokenHash]struct{}{}}
}

// begin waits until the token may be looked up. Call end with the error of the query. Fault resource_exhausted.
func (l *tokenLookups) begin(ctx context.Context, hash natsauth.TokenHash) (end func(error), err error) {
	l.mu.Lock()
	_, valid := l.valid[hash]
	if valid {
		l.mu.Unlock()
		return func(err error) { l.record(hash, err) }, nil
	}
	if l.waiting >= maxWaitingLookups {
		l.mu.Unlock()
		return nil, fault.New(errcode.ResourceExhausted, "too many new tokens are being checked: try again")
	}
	l.waiting++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waiting--
	}()
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return func(err error) {
		<-l.slots
		l.record(hash, err)
	}, nil
}

func (l *tokenLookups) record(hash natsauth.TokenHash, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		if len(l.valid) >= maxValidTokens {
			clear(l.valid)
		}
		l.valid[hash] = struct{}{}
	case fault.Is(err, errcode.NotFound):
		delete(l.valid, hash)
	}
}
