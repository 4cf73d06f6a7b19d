package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/idrange"
)

// ReserveIDs moves the sequence ids of the schema into the range of the cell with a number. It can be repeated. It
// returns an error if ids of another range are in use.
func ReserveIDs(ctx context.Context, db Beginner, cellNumber int64) error {
	ids := idrange.OfCell(cellNumber)
	return InTx(ctx, db, func(tx pgx.Tx) error {
		var last int64
		var called bool
		if err := tx.QueryRow(ctx, `SELECT last_value, is_called FROM ids`).Scan(&last, &called); err != nil {
			return fmt.Errorf("read the sequence of ids: %w", err)
		}
		if ids.Contains(last) {
			return nil
		}
		if called {
			return fmt.Errorf("cell.number: %d begins with the id %d, but this database has ids up to %d: keep the old number",
				cellNumber, ids.First, last)
		}
		if _, err := tx.Exec(ctx, `SELECT setval('ids', $1, false)`, ids.First); err != nil {
			return fmt.Errorf("reserve ids: %w", err)
		}
		return nil
	})
}
