package postgres

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
)

// Changes is a LISTEN client for changed workspace ids.
type Changes = postgres.ChangeListener[uuid.UUID]

// NewChanges listens on WorkspaceChannel.
func NewChanges(pool *pgxpool.Pool) *Changes {
	return postgres.NewChangeListener(pool, WorkspaceChannel, uuid.Parse)
}
