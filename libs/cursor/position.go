package cursor

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations creates the cursors' table in the service's schema.
func Migrations() (postgres.Migrations, error) {
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		return postgres.Migrations{}, fmt.Errorf("open the cursor's migrations: %w", err)
	}
	return postgres.Migrations{Name: "cursor", FS: dir}, nil
}

// errSuperseded reports that another reader has moved the cursor.
var errSuperseded = errors.New("another reader has moved the cursor")

// mark identifies a stored message, also after its stream was restored. A restored stream can contain the same
// event at the same sequence, but with another storage time.
type mark struct {
	sequence uint64
	id       string
	stored   int64
}

// cursorRow is a row of stream_cursors. Epoch 0 means that the consumer has never read the stream.
type cursorRow struct {
	epoch   int64
	last    mark
	created int64
}

// cursorKey names a row of stream_cursors.
type cursorKey struct{ consumer, stream string }

func (k cursorKey) load(ctx context.Context, conn *pgx.Conn) (cursorRow, error) {
	_, err := conn.Exec(ctx, `INSERT INTO stream_cursors (consumer, stream) VALUES ($1, $2) ON CONFLICT DO NOTHING`,
		k.consumer, k.stream)
	if err != nil {
		return cursorRow{}, fmt.Errorf("create the cursor: %w", err)
	}
	var p cursorRow
	err = conn.QueryRow(ctx, `
		SELECT epoch, sequence, event_id, stored_at, stream_created FROM stream_cursors WHERE consumer = $1 AND stream = $2`,
		k.consumer, k.stream).Scan(&p.epoch, &p.last.sequence, &p.last.id, &p.last.stored, &p.created)
	if err != nil {
		return cursorRow{}, fmt.Errorf("read the cursor: %w", err)
	}
	return p, nil
}

// move updates the cursor within the transaction. It returns errSuperseded when the cursor is not at from.
func (k cursorKey) move(ctx context.Context, tx pgx.Tx, from, to cursorRow) error {
	tag, err := tx.Exec(ctx, `
		UPDATE stream_cursors
		SET epoch = $5, sequence = $6, event_id = $7, stored_at = $8, stream_created = $9, updated_at = now()
		WHERE consumer = $1 AND stream = $2 AND epoch = $3 AND sequence = $4`,
		k.consumer, k.stream, from.epoch, from.last.sequence,
		to.epoch, to.last.sequence, to.last.id, to.last.stored, to.created)
	if err != nil {
		return fmt.Errorf("move the cursor: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return errSuperseded
	}
	return nil
}

// Position is the progress of a consumer.
type Position struct {
	// Epoch counts how often the stream was read from its start. 0 means never.
	Epoch int64
	// Sequence of the last committed message.
	Sequence uint64
}

// LockPosition returns the consumer's position and blocks every replica from moving it until the transaction
// ends. Lock several consumers in the order of their names.
func (c *Consumer[T]) LockPosition(ctx context.Context, tx pgx.Tx) (Position, error) {
	return c.cfg.key().position(ctx, tx, " FOR UPDATE")
}

// Position returns the consumer's position. It may change at any time.
func (c *Consumer[T]) Position(ctx context.Context, tx pgx.Tx) (Position, error) {
	return c.cfg.key().position(ctx, tx, "")
}

func (k cursorKey) position(ctx context.Context, tx pgx.Tx, lock string) (Position, error) {
	var p Position
	err := tx.QueryRow(ctx, `SELECT epoch, sequence FROM stream_cursors WHERE consumer = $1 AND stream = $2`+lock,
		k.consumer, k.stream).Scan(&p.Epoch, &p.Sequence)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Position{}, fmt.Errorf("read the cursor of %s: %w", k.consumer, err)
	}
	return p, nil
}

// streamState is the current state of a stream.
type streamState struct {
	created      int64
	lastSequence uint64
	atCursor     *mark // the message at the cursor's sequence, nil when the stream no longer holds it
}

// restartReason returns why the stream must be read from its start, or "" if the cursor is still valid.
func restartReason(p cursorRow, s streamState) string {
	timestamp := func(nanoseconds int64) string { return time.Unix(0, nanoseconds).UTC().Format(time.RFC3339Nano) }
	switch {
	case p.epoch == 0:
		return "this consumer has never read the stream"
	case p.last.sequence == 0:
		return "" // nothing was read yet, so reading continues at the start in any case
	case s.lastSequence < p.last.sequence:
		return fmt.Sprintf("the stream ends at %d, before the cursor at %d", s.lastSequence, p.last.sequence)
	case s.atCursor != nil && (s.atCursor.id != p.last.id || s.atCursor.stored != p.last.stored):
		return fmt.Sprintf("message %d has event id %s and was stored at %s; the cursor expects %s, stored at %s",
			p.last.sequence, s.atCursor.id, timestamp(s.atCursor.stored), p.last.id, timestamp(p.last.stored))
	case s.atCursor == nil && s.created != p.created:
		return fmt.Sprintf("message %d is gone and the stream was created at %s, not %s",
			p.last.sequence, timestamp(s.created), timestamp(p.created))
	default:
		return ""
	}
}
