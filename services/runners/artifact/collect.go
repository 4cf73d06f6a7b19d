package artifact

import (
	"context"
	"fmt"
	"iter"
	"time"

	"lockstep.internal/services/runners/objects"
)

// batch is the number of keys in one question to the database.
const batch = 500

// Listing is the part of a store that [Collect] needs; see package objects.
type Listing interface {
	List(ctx context.Context, before time.Time) iter.Seq2[objects.Entry, error]
	Sweep(ctx context.Context, before time.Time) (int, error)
	Delete(ctx context.Context, key string) error
}

// Named returns those of the keys that a row of the database names.
type Named func(ctx context.Context, keys []string) (map[string]bool, error)

// Collected counts what [Collect] has deleted.
type Collected struct {
	// Objects that no row names.
	Objects int
	// Parts that interrupted uploads have left.
	Parts int
}

// Collect deletes the objects that were stored before a time and have no row, and what interrupted uploads have left.
// The time is a day ago, so that the uploads that still run are spared. It ends with the first error, and can be called
// again. Replicas may call it at the same time.
func Collect(ctx context.Context, store Listing, before time.Time, named Named) (Collected, error) {
	var done Collected
	var keys []string
	remove := func() error {
		known, err := named(ctx, keys)
		if err != nil {
			return fmt.Errorf("find the rows of objects: %w", err)
		}
		for _, key := range keys {
			if known[key] {
				continue
			}
			if err := store.Delete(ctx, key); err != nil {
				return fmt.Errorf("delete the object %s, which has no row: %w", key, err)
			}
			done.Objects++
		}
		keys = keys[:0]
		return nil
	}
	for entry, err := range store.List(ctx, before) {
		if err != nil {
			return done, fmt.Errorf("list objects: %w", err)
		}
		if keys = append(keys, entry.Key); len(keys) == batch {
			if err := remove(); err != nil {
				return done, err
			}
		}
	}
	if len(keys) > 0 {
		if err := remove(); err != nil {
			return done, err
		}
	}
	var err error
	if done.Parts, err = store.Sweep(ctx, before); err != nil {
		return done, fmt.Errorf("sweep: %w", err)
	}
	return done, nil
}
