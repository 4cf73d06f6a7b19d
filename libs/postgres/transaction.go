package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Beginner starts transactions: a pool, a connection, or a transaction (then the new one is a savepoint).
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// InTx runs fn in a transaction, commits when it returns nil and rolls back when it returns an error or panics. fn's error is
// returned as it is.
//
// On a pool and on a connection the transaction begins together with its first statement and commits together with what [Later] was given: neither costs a way to the
// database of its own. Without any statement it does not begin at all.
func InTx(ctx context.Context, db Beginner, fn func(tx pgx.Tx) error) error {
	tx, release, err := begin(ctx, db)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer release()
	// After a commit this does nothing. A connection that cannot roll back is closed, which rolls back as well.
	defer func() { _ = tx.Rollback(ctx) }()
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit transaction: %w", err)
	}
	return nil
}

func begin(ctx context.Context, db Beginner) (pgx.Tx, func(), error) {
	switch db := db.(type) {
	case *pgxpool.Pool:
		conn, err := db.Acquire(ctx)
		if err != nil {
			return nil, nil, err //nolint:wrapcheck // InTx says what for
		}
		return &transaction{conn: conn.Conn()}, conn.Release, nil
	case *pgx.Conn:
		return &transaction{conn: db}, func() {}, nil
	default:
		tx, err := db.Begin(ctx)
		return tx, func() {}, err
	}
}

// Later has the statements of the batch sent before the transaction's next one, or together with its commit when there is none: what a transaction writes last costs no
// way to the database but the commit's. Their first error is that of the statement, or of the commit, they were sent with, and says what they were for. Their results go to
// the batch's callbacks: one that fails with the commit undoes nothing, since that has happened by then. The batch is not used again. In a transaction that [InTx] has not begun on a pool or a connection they are sent at once.
func Later(ctx context.Context, tx pgx.Tx, batch *pgx.Batch, what string, args ...any) error {
	what = fmt.Sprintf(what, args...)
	if t, ok := tx.(*transaction); ok && !t.over {
		for _, q := range batch.QueuedQueries {
			t.later = append(t.later, statement{QueuedQuery: q, what: what})
		}
		return nil
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// AfterCommit has fn called once the transaction is known to have committed. It is for hints, not for duties: of a commit whose connection is lost nothing is known, and a
// transaction that [InTx] has not begun on a pool or a connection calls nothing.
func AfterCommit(tx pgx.Tx, fn func()) {
	if t, ok := tx.(*transaction); ok {
		t.after = append(t.after, fn)
	}
}

// transaction is a pgx.Tx that begins with its first statement, and keeps what it was given for later until there is something to send it with.
type transaction struct {
	conn  *pgx.Conn
	begun pgx.Tx // nil until the server has been asked to begin
	over  bool
	later []statement
	after []func()
}

// statement is one that waits, and what it is for.
type statement struct {
	*pgx.QueuedQuery

	what string
}

// take takes its result.
func (s statement) take(results pgx.BatchResults) error {
	var err error
	if s.Fn != nil {
		err = s.Fn(results)
	} else {
		_, err = results.Exec()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.what, err)
	}
	return nil
}

// send sends statements after all that has to come before them, and takes the results of the latter.
func (t *transaction) send(ctx context.Context, queries ...*pgx.QueuedQuery) pgx.BatchResults {
	var batch pgx.Batch
	if t.over {
		return pgx.FailedBatchResults(&batch, pgx.ErrTxClosed)
	}
	ahead := t.later
	if t.begun == nil {
		batch.BeginTx(pgx.TxOptions{})
		ahead = append([]statement{{QueuedQuery: batch.QueuedQueries[0], what: "begin"}}, ahead...)
	}
	t.later, batch.QueuedQueries = nil, make([]*pgx.QueuedQuery, 0, len(ahead)+len(queries))
	for _, s := range ahead {
		batch.QueuedQueries = append(batch.QueuedQueries, s.QueuedQuery)
	}
	batch.QueuedQueries = append(batch.QueuedQueries, queries...)
	results := t.conn.SendBatch(ctx, &batch)
	if t.begun == nil {
		t.begun = results.Tx()
	}
	for _, s := range ahead {
		if err := s.take(results); err != nil {
			_ = results.Close()
			return pgx.FailedBatchResults(&pgx.Batch{}, err)
		}
	}
	return results
}

// direct returns the transaction itself once nothing has to be sent before the next statement, else nil.
func (t *transaction) direct() pgx.Tx {
	if t.over || len(t.later) > 0 {
		return nil
	}
	return t.begun
}

// flush sends what has to come before a statement that cannot be sent with it.
func (t *transaction) flush(ctx context.Context) (pgx.Tx, error) {
	if t.direct() == nil {
		if err := t.send(ctx).Close(); err != nil {
			return nil, err //nolint:wrapcheck // as pgx's own transactions
		}
	}
	return t.begun, nil
}

func (t *transaction) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.send(ctx, b.QueuedQueries...)
}

// Exec sends what has no arguments by itself, since that may be several statements.
func (t *transaction) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if len(args) == 0 || t.direct() != nil {
		tx, err := t.flush(ctx)
		if err != nil {
			return pgconn.CommandTag{}, err
		}
		return tx.Exec(ctx, sql, args...) //nolint:wrapcheck // as pgx's own transactions
	}
	results := t.send(ctx, &pgx.QueuedQuery{SQL: sql, Arguments: args})
	tag, err := results.Exec()
	if closing := results.Close(); err == nil {
		err = closing
	}
	return tag, err
}

func (t *transaction) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if tx := t.direct(); tx != nil {
		return tx.Query(ctx, sql, args...) //nolint:wrapcheck // as pgx's own transactions
	}
	results := t.send(ctx, &pgx.QueuedQuery{SQL: sql, Arguments: args})
	found, err := results.Query()
	if !t.over {
		err = nil // the rows know it, as they do of a statement that is sent by itself
	}
	return &rows{Rows: found, results: results}, err
}

func (t *transaction) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	found, _ := t.Query(ctx, sql, args...) // the rows know the error
	return row{found}
}

func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (int64, error) {
	tx, err := t.flush(ctx)
	if err != nil {
		return 0, err
	}
	return tx.CopyFrom(ctx, table, columns, from) //nolint:wrapcheck // as pgx's own transactions
}

func (t *transaction) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	tx, err := t.flush(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Prepare(ctx, name, sql) //nolint:wrapcheck // as pgx's own transactions
}

// Begin makes a savepoint, before which all is sent that was to be sent later.
func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.flush(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Begin(ctx) //nolint:wrapcheck // as pgx's own transactions
}

// LargeObjects are of a transaction that has begun, which Lockstep has none of.
func (t *transaction) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

func (t *transaction) Conn() *pgx.Conn { return t.conn }

func (t *transaction) Commit(ctx context.Context) error {
	if t.over {
		return pgx.ErrTxClosed
	}
	if t.begun != nil || len(t.later) > 0 {
		results := t.send(ctx, &pgx.QueuedQuery{SQL: "commit"})
		tag, err := results.Exec()
		if closing := results.Close(); err == nil {
			err = closing
		}
		if err != nil {
			return err
		}
		if tag.String() == "ROLLBACK" {
			t.over = true
			return pgx.ErrTxCommitRollback
		}
	}
	t.over = true
	for _, fn := range t.after {
		fn()
	}
	return nil
}

func (t *transaction) Rollback(ctx context.Context) error {
	if t.over {
		return pgx.ErrTxClosed
	}
	t.over = true
	if t.begun == nil {
		return nil
	}
	return t.begun.Rollback(ctx) //nolint:wrapcheck // as pgx's own transactions
}

// rows are those of a statement that was sent in a batch, which ends with them.
type rows struct {
	pgx.Rows

	results pgx.BatchResults
	err     error
}

func (r *rows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

func (r *rows) Close() {
	r.Rows.Close()
	r.err = r.results.Close()
}

func (r *rows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err //nolint:wrapcheck // as pgx's own transactions
	}
	return r.err
}

// row is the first of the rows.
type row struct{ rows pgx.Rows }

func (r row) Scan(to ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err //nolint:wrapcheck // as pgx's own transactions
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(to...); err != nil {
		return err //nolint:wrapcheck // as pgx's own transactions
	}
	r.rows.Close()
	return r.rows.Err() //nolint:wrapcheck // as pgx's own transactions
}
