package sink

import (
	"context"
	"encoding/json"
	"fmt"
)

// Recall reads what a sink remembers of the thread of the delivery; the zero T when that is nothing.
func Recall[T any](ctx context.Context, d Delivery) (T, error) {
	var value T
	raw, found, err := d.Threads.Get(ctx, d.Thread)
	if err != nil || !found {
		return value, err
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return value, Permanent(fmt.Errorf("what is remembered of thread %s: %w", d.Thread, err))
	}
	return value, nil
}

// Remember keeps what a sink is to know of the thread of the delivery.
func Remember[T any](ctx context.Context, d Delivery, value T) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("what is remembered of thread %s: %w", d.Thread, err)
	}
	return d.Threads.Put(ctx, d.Thread, raw)
}
