package sinktest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
)

// ErrDown is the error of [Threads] while it is down.
var ErrDown = errors.New("the database is unavailable")

// Threads implements sink.Threads in memory.
type Threads struct {
	mu     sync.Mutex
	values map[string]json.RawMessage
	down   bool
}

// Down makes all methods fail, or work again.
func (t *Threads) Down(down bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.down = down
}

// Forget deletes all values, like a lost database.
func (t *Threads) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.values = nil
}

// Get implements sink.Threads.
func (t *Threads) Get(_ context.Context, thread string) (json.RawMessage, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down {
		return nil, false, ErrDown
	}
	value, found := t.values[thread]
	return value, found, nil
}

// Claim implements sink.Threads.
func (t *Threads) Claim(_ context.Context, thread string, value json.RawMessage) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down {
		return false, ErrDown
	}
	if _, found := t.values[thread]; found {
		return false, nil
	}
	t.put(thread, value)
	return true, nil
}

// Put implements sink.Threads.
func (t *Threads) Put(_ context.Context, thread string, value json.RawMessage) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down {
		return ErrDown
	}
	t.put(thread, value)
	return nil
}

func (t *Threads) put(thread string, value json.RawMessage) {
	if t.values == nil {
		t.values = map[string]json.RawMessage{}
	}
	t.values[thread] = value
}
