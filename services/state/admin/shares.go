package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/services/state/postgres"
)

// endShares ends and publishes the shares of a locked user in projects in which the user has no role any more.
func (d *Directory) endShares(ctx context.Context, tx pgx.Tx, userID int64) error {
	ended, err := d.EndShares(ctx, tx, &postgres.Workspaces{}, userID)
	if err != nil {
		return fmt.Errorf("end the shares of user %d: %w", userID, err)
	}
	for i := range ended {
		m, err := d.Encoder.Access(ctx, ended[i])
		if err != nil {
			return err
		}
		if err := outbox.Insert(ctx, tx, m); err != nil {
			return fmt.Errorf("publish the shares of workspace %s: %w", ended[i].ID, err)
		}
	}
	return nil
}
