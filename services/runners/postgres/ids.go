package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
)

// IDsPerCell is the size of the range of ids of a cell: 2^40.
const IDsPerCell = int64(1) << 40

// ReserveIDs moves the sequence of ids into the range of the cell. It returns an error if ids of another range are in
// use.
func ReserveIDs(ctx context.Context, db postgres.Beginner, cell int64) error {
	return postgres.InTx(ctx, db, func(tx pgx.Tx) error {
		first := cell*IDsPerCell + 1
		var last int64
		var called bool
		if err := tx.QueryRow(ctx, `SELECT last_value, is_called FROM ids`).Scan(&last, &called); err != nil {
			return fmt.Errorf("read the sequence of ids: %w", err)
		}
		if last >= first && last < first+IDsPerCell {
			return nil
		}
		if called {
			return fmt.Errorf("cell.number: %d begins with the id %d, but this database has ids up to %d: keep the old number",
				cell, first, last)
		}
		if _, err := tx.Exec(ctx, `SELECT setval('ids', $1, false)`, first); err != nil {
			return fmt.Errorf("reserve ids: %w", err)
		}
		return nil
	})
}

// NewIDs returns n new ids, ascending.
func NewIDs(ctx context.Context, tx pgx.Tx, n int) ([]int64, error) {
	rows, err := tx.Query(ctx, `SELECT nextval('ids') FROM generate_series(1, $1)`, n)
	if err != nil {
		return nil, fmt.Errorf("get %d ids: %w", n, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("get %d ids: %w", n, err)
	}
	return ids, nil
}
