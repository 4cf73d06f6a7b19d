package runner

import (
	"context"
	"sync"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

const (
	// maxLookups is the maximum number of concurrent queries for unknown tokens, and maxWaitingLookups of those that
	// wait. Any text of the right form is a token that costs a query.
	maxLookups        = 4
	maxWaitingLookups = 64
	// maxUnknownTokens limits the memory. A full set is cleared.
	maxUnknownTokens = 10_000
)

// tokenLookups bounds the queries for tokens that the registry does not know. It remembers those that do not exist: a
// token is random, so nobody has one before it is stored. It is safe for concurrent use.
type tokenLookups struct {
	slots chan struct{}

	mu      sync.Mutex
	waiting int
	// generation counts the calls of forget.
	generation int
	unknown    map[TokenHash]struct{}
}

func newTokenLookups() *tokenLookups {
	return &tokenLookups{slots: make(chan struct{}, maxLookups), unknown: map[TokenHash]struct{}{}}
}

// begin waits until the token may be looked up, unless it is known that it does not exist. Call end with that result.
// Fault resource_exhausted.
func (l *tokenLookups) begin(ctx context.Context, hash TokenHash) (unknown bool, end func(unknown bool), err error) {
	l.mu.Lock()
	if _, unknown = l.unknown[hash]; unknown {
		l.mu.Unlock()
		return true, nil, nil
	}
	if l.waiting >= maxWaitingLookups {
		l.mu.Unlock()
		return false, nil, fault.New(errcode.ResourceExhausted, "too many unknown tokens are being checked: try again")
	}
	l.waiting++
	generation := l.generation
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waiting--
	}()
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return false, nil, ctx.Err()
	}
	return false, func(unknown bool) {
		<-l.slots
		if unknown {
			l.remember(hash, generation)
		}
	}, nil
}

func (l *tokenLookups) remember(hash TokenHash, generation int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.generation != generation {
		return
	}
	if len(l.unknown) >= maxUnknownTokens {
		clear(l.unknown)
	}
	l.unknown[hash] = struct{}{}
}

// forget looks all tokens up again: the database may be another one, such as a restored backup.
func (l *tokenLookups) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.generation++
	clear(l.unknown)
}
