package postgres

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
)

// Changes notifies of changed rollouts, by id.
type Changes = postgres.ChangeListener[string]

// NewChanges returns a listener for changed rollouts.
func NewChanges(pool *pgxpool.Pool) *Changes {
	return postgres.NewChangeListener(pool, Channel, func(id string) (string, error) { return id, nil })
}
