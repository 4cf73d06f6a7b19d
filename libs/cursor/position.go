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

// errSuperseded says that the cursor is not where this reader left it.
var errSuperseded = errors.New("the cursor was moved by somebody else")

// mark identifies a message of a stream across the stream's incarnations. A restored stream can come to hold the same event at the same
// sequence again, but not stored at the same nanosecond.
type mark struct {
	sequence uint64
	id       string
	stored   int64
}

// position is a row of stream_cursors. Epoch 0 is a consumer that has never read the stream.
type position struct {
	epoch   int64
	last    mark
	created int64
}

// cursorKey names a row of stream_cursors.
type cursorKey struct{ consumer, stream string }

func (k cursorKey) load(ctx context.Context, conn *pgx.Conn) (position, error) {
	_, err := conn.Exec(ctx, `INSERT INTO stream_cursors (consumer, stream) VALUES ($1, $2) ON CONFLICT DO NOTHING`, k.consumer, k.stream)
	if err != nil {
		return position{}, fmt.Errorf("create the cursor: %w", err)
	}
	var p position
	err = conn.QueryRow(ctx, `
		SELECT epoch, sequence, event_id, stored_at, stream_created FROM stream_cursors WHERE consumer = $1 AND stream = $2`,
		k.consumer, k.stream).Scan(&p.epoch, &p.last.sequence, &p.last.id, &p.last.stored, &p.created)
	if err != nil {
		return position{}, fmt.Errorf("read the cursor: %w", err)
	}
	return p, nil
}

// move moves the cursor from one position to another within the transaction, unless it is elsewhere.
func (k cursorKey) move(ctx context.Context, tx pgx.Tx, from, to position) error {
	tag, err := tx.Exec(ctx, `
		UPDATE stream_cursors
		SET epoch = $5, sequence = $6, event_id = $7, stored_at = $8, stream_created = $9, updated_at = now()
		WHERE consumer = $1 AND stream = $2 AND epoch = $3 AND sequence = $4`,
		k.consumer, k.stream, from.epoch, from.last.sequence, to.epoch, to.last.sequence, to.last.id, to.last.stored, to.created)
	if err != nil {
		return fmt.Errorf("move the cursor: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return errSuperseded
	}
	return nil
}

// Position is how far a consumer has taken its stream.
type Position struct {
	// Epoch of the stream's incarnations; 0 is a consumer that has never read it.
	Epoch int64
	// Sequence of the last message taken.
	Sequence uint64
}

// LockPosition returns the consumer's position and keeps it there: until the transaction ends, nothing more is taken into the database, by whichever
// replica; the reader waits. Whoever holds several consumers does it in the order of their names.
func (c *Consumer[T]) LockPosition(ctx context.Context, tx pgx.Tx) (Position, error) {
	return c.cfg.key().position(ctx, tx, " FOR UPDATE")
}

// Position returns how far the consumer is; other than Hold, it may be further a moment later.
func (c *Consumer[T]) Position(ctx context.Context, tx pgx.Tx) (Position, error) {
	return c.cfg.key().position(ctx, tx, "")
}

func (k cursorKey) position(ctx context.Context, tx pgx.Tx, lock string) (Position, error) {
	var p Position
	err := tx.QueryRow(ctx, `SELECT epoch, sequence FROM stream_cursors WHERE consumer = $1 AND stream = $2`+lock, k.consumer, k.stream).Scan(&p.Epoch, &p.Sequence)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Position{}, fmt.Errorf("read the cursor of %s: %w", k.consumer, err)
	}
	return p, nil
}

// found is what a stream says about itself.
type found struct {
	created int64
	ends    uint64
	at      *mark // the message at the cursor's sequence; nil when the stream no longer holds it
}

// changed says why the stream is another incarnation than the one the cursor was in; empty when it is the same as far as can be told.
func changed(p position, f found) string {
	switch {
	case p.epoch == 0:
		return "this consumer has never read the stream"
	case p.last.sequence == 0:
		return "" // nothing read yet: reading goes on at the start in any case
	case f.ends < p.last.sequence:
		return fmt.Sprintf("the stream ends at %d, before the cursor at %d", f.ends, p.last.sequence)
	case f.at != nil && (f.at.id != p.last.id || f.at.stored != p.last.stored):
		return fmt.Sprintf("message %d is %s stored at %s, the cursor was at %s stored at %s", p.last.sequence,
			f.at.id, time.Unix(0, f.at.stored).UTC().Format(time.RFC3339Nano), p.last.id, time.Unix(0, p.last.stored).UTC().Format(time.RFC3339Nano))
	case f.at == nil && f.created != p.created:
		return fmt.Sprintf("message %d is gone and the stream was made at %s, not %s", p.last.sequence,
			time.Unix(0, f.created).UTC().Format(time.RFC3339Nano), time.Unix(0, p.created).UTC().Format(time.RFC3339Nano))
	default:
		return ""
	}
}
