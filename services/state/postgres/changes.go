package postgres

import (
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/postgres"
)

// AccessChanges is a LISTEN client for users whose access changed.
type AccessChanges = postgres.ChangeListener[int64]

// NewAccessChanges listens on AccessChannel.
func NewAccessChanges(pool *pgxpool.Pool) *AccessChanges {
	parse := func(payload string) (int64, error) { return strconv.ParseInt(payload, 10, 64) }
	return postgres.NewChangeListener(pool, AccessChannel, parse)
}

// Changes is a LISTEN client for changed workspace ids.
type Changes = postgres.ChangeListener[uuid.UUID]

// NewChanges listens on WorkspaceChannel.
func NewChanges(pool *pgxpool.Pool) *Changes {
	return postgres.NewChangeListener(pool, WorkspaceChannel, uuid.Parse)
}
