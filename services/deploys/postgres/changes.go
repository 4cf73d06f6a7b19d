package postgres

import (
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
)

// Changes tells which rollouts changed.
type Changes = postgres.ChangeListener[string]

// NewChanges makes a Changes of rollouts.
func NewChanges(pool *pgxpool.Pool) *Changes {
	return postgres.NewChangeListener(pool, Channel, func(id string) (string, error) { return id, nil })
}
