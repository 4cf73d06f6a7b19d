package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Batches are the statements of a transaction that takes two round trips.
type Batches struct {
	// First is sent with the BEGIN. Its callbacks read what Then needs.
	First *pgx.Batch
	// Then returns the statements that follow.
	Then func() (Last, error)
}

// Last is sent with the COMMIT.
type Last struct {
	Batch *pgx.Batch
	// Check is called after the statements, and then decides whether they are committed: this takes another round trip.
	// Optional.
	Check func() error
}

// InBatches runs a transaction. It rolls back when a statement, Then or Check fails, and returns that error. When the
// connection is lost during the commit, it returns an error although the transaction may have been committed.
func InBatches(ctx context.Context, pool *pgxpool.Pool, b Batches) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	// It closes a connection whose transaction is open, which rolls back.
	defer conn.Release()
	err = b.run(ctx, conn)
	if err != nil && !conn.Conn().IsClosed() && conn.Conn().PgConn().TxStatus() != 'I' {
		_, _ = conn.Exec(ctx, "ROLLBACK") // see above
	}
	return err
}

func (b Batches) run(ctx context.Context, conn *pgxpool.Conn) error {
	first := &pgx.Batch{QueuedQueries: append([]*pgx.QueuedQuery{{SQL: "BEGIN"}}, b.First.QueuedQueries...)}
	if err := conn.SendBatch(ctx, first).Close(); err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	last, err := b.Then()
	if err != nil {
		return err
	}
	if last.Check != nil {
		if err := conn.SendBatch(ctx, last.Batch).Close(); err != nil {
			return fmt.Errorf("run transaction: %w", err)
		}
		if err := last.Check(); err != nil {
			return err
		}
		last.Batch = &pgx.Batch{}
	}
	last.Batch.Queue("COMMIT")
	if err := conn.SendBatch(ctx, last.Batch).Close(); err != nil {
		return fmt.Errorf("commit transaction: %w", err)
	}
	return nil
}
