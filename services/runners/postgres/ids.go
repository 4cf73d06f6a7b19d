package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

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
