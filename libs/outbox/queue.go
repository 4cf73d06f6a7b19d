package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/postgres"
)

// row is a message in the outbox.
type row struct {
	id int64
	// key orders the row: rows with the same key are published one after another.
	key     string
	subject string
	header  nats.Header
	data    []byte
	age     time.Duration
}

const columns = `id, subject, header, data, created_at`

// key is the ordering key of a row; $1 is [Config.OrderingKey].
const key = `coalesce(substring(subject FROM nullif($1::text, '')), subject)`

// queue reads and writes the outbox's tables through the connection that holds the lock.
type queue struct {
	conn        *pgx.Conn
	orderingKey string
}

// read returns the oldest rows whose key is not excluded: at most limit rows, with about maxBytes bytes in all.
func (q queue) read(ctx context.Context, excluded []string, limit int, maxBytes int64) ([]row, error) {
	return q.collect(ctx, `SELECT `+columns+` FROM outbox WHERE `+key+` <> ALL ($3) ORDER BY id LIMIT $4`,
		maxBytes, excluded, limit)
}

// readRows returns the rows with these ids that still exist, with about maxBytes bytes in all.
func (q queue) readRows(ctx context.Context, ids []int64, maxBytes int64) ([]row, error) {
	return q.collect(ctx, `SELECT `+columns+` FROM outbox WHERE id = ANY ($3)`, maxBytes, ids)
}

func (q queue) collect(ctx context.Context, selection string, maxBytes int64, args ...any) ([]row, error) {
	rows, err := q.conn.Query(ctx, `
		SELECT id, `+key+`, subject, header, data, greatest(extract(epoch FROM clock_timestamp() - created_at), 0)::float8
		FROM (
			SELECT `+columns+`, sum(octet_length(data)) OVER (ORDER BY id) - octet_length(data) AS before
			FROM (`+selection+`) AS selected
		) AS counted
		WHERE before < $2
		ORDER BY id`, append([]any{q.orderingKey, maxBytes}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	waiting, err := pgx.CollectRows(rows, func(collected pgx.CollectableRow) (row, error) {
		var r row
		var seconds float64
		err := collected.Scan(&r.id, &r.key, &r.subject, &r.header, &r.data, &seconds)
		r.age = time.Duration(seconds * float64(time.Second))
		return r, err //nolint:wrapcheck // wrapped below
	})
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	return waiting, nil
}

// remove deletes published rows and stores the last sequence of their streams, in one transaction and one round
// trip. It commits asynchronously. After a crash of the database rows can reappear; they are recognized as
// published.
func (q queue) remove(ctx context.Context, ids []int64, acknowledged map[string]uint64) error {
	streams, sequences := make([]string, 0, len(acknowledged)), make([]int64, 0, len(acknowledged))
	for stream, sequence := range acknowledged {
		streams, sequences = append(streams, stream), append(sequences, int64(sequence))
	}
	var batch pgx.Batch
	batch.Queue(`SELECT set_config('synchronous_commit', 'off', true)`)
	batch.Queue(`DELETE FROM outbox WHERE id = ANY ($1)`, ids)
	batch.Queue(`
		INSERT INTO outbox_streams (stream, last_sequence)
		SELECT stream, sequence FROM unnest($1::text[], $2::bigint[]) AS ends (stream, sequence)
		ON CONFLICT (stream) DO UPDATE SET last_sequence = excluded.last_sequence
		WHERE outbox_streams.last_sequence < excluded.last_sequence`, streams, sequences)
	if err := q.conn.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("remove %d published messages from the outbox: %w", len(ids), err)
	}
	return nil
}

// streams returns the highest acknowledged sequence of each stream.
func (q queue) streams(ctx context.Context) (map[string]uint64, error) {
	rows, err := q.conn.Query(ctx, `SELECT stream, last_sequence FROM outbox_streams`)
	if err != nil {
		return nil, fmt.Errorf("read the outbox's streams: %w", err)
	}
	streams := make(map[string]uint64)
	var stream string
	var sequence int64
	_, err = pgx.ForEachRow(rows, []any{&stream, &sequence}, func() error {
		streams[stream] = uint64(sequence)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the outbox's streams: %w", err)
	}
	return streams, nil
}

// highest returns the highest id assigned to a row so far.
func (q queue) highest(ctx context.Context) (int64, error) {
	var id int64
	err := q.conn.QueryRow(ctx, `
		SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('outbox', 'id')), 0)`).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("read the outbox's highest id: %w", err)
	}
	return id, nil
}

// storeRestoredStream stores the stream's last sequence and calls restored, in one transaction.
func (q queue) storeRestoredStream(
	ctx context.Context, stream string, last uint64, restored func(tx pgx.Tx) error,
) error {
	return postgres.InTx(ctx, q.conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE outbox_streams SET last_sequence = $2 WHERE stream = $1`, stream, int64(last))
		if err != nil {
			return fmt.Errorf("store the last sequence of the restored stream %s: %w", stream, err)
		}
		return restored(tx)
	})
}

// restoredDatabase is the key in outbox_streams of a database that was restored, until [Config.Restored] has
// committed. No stream has an empty name.
const restoredDatabase = ""

// recordRestoredDatabase records a restored database before anything is changed: what follows is repeated until it
// has committed. A rollback alone would not repeat it, because it does not undo the raised ids.
func (q queue) recordRestoredDatabase(ctx context.Context, above int64) error {
	_, err := q.conn.Exec(ctx, `INSERT INTO outbox_streams (stream, last_sequence) VALUES ($1, $2)`,
		restoredDatabase, above)
	if err != nil {
		return fmt.Errorf("record the restored database: %w", err)
	}
	return nil
}

// raiseIDs moves the ids of waiting and future rows above a revision that a stream already contains. The waiting rows
// are the current state, so they must follow what the streams hold.
//
// Transactions lock entities first and the outbox last. So this one locks no entity: it would deadlock with each
// transaction that has locked one and inserts a row.
func (q queue) raiseIDs(ctx context.Context, above int64) error {
	return postgres.InTx(ctx, q.conn, func(tx pgx.Tx) error {
		// The lock waits for transactions that have inserted rows, and blocks new ones until the ids are raised.
		if _, err := tx.Exec(ctx, `LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return fmt.Errorf("lock the outbox: %w", err)
		}
		_, err := tx.Exec(ctx, `
			SELECT setval(sequence, greatest(pg_sequence_last_value(sequence), $1::bigint))
			FROM (SELECT pg_get_serial_sequence('outbox', 'id')::regclass AS sequence) AS of`, above)
		if err != nil {
			return fmt.Errorf("raise the outbox's ids: %w", err)
		}
		_, err = tx.Exec(ctx, `
			WITH raised AS (
				SELECT id, nextval(pg_get_serial_sequence('outbox', 'id')) AS new
				FROM (SELECT id FROM outbox ORDER BY id) AS ordered
			)
			UPDATE outbox SET id = raised.new FROM raised WHERE outbox.id = raised.id`)
		if err != nil {
			return fmt.Errorf("raise the ids of waiting messages: %w", err)
		}
		return nil
	})
}

// finishRestoredDatabase calls restored and removes the record of the restored database, in one transaction.
func (q queue) finishRestoredDatabase(ctx context.Context, restored func(tx pgx.Tx) error) error {
	return postgres.InTx(ctx, q.conn, func(tx pgx.Tx) error {
		if err := restored(tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM outbox_streams WHERE stream = $1`, restoredDatabase); err != nil {
			return fmt.Errorf("remove the record of the restored database: %w", err)
		}
		return nil
	})
}
