package postgres

import (
	"embed"
	"fmt"
	"io/fs"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations of the service of the outbox and of the cursor.
func Migrations() ([]postgres.Migrations, error) {
	own, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, fmt.Errorf("open the migrations: %w", err)
	}
	box, err := outbox.Migrations()
	if err != nil {
		return nil, fmt.Errorf("open the migrations: %w", err)
	}
	cursors, err := cursor.Migrations()
	if err != nil {
		return nil, fmt.Errorf("open the migrations: %w", err)
	}
	return []postgres.Migrations{{Name: "admission", FS: own}, box, cursors}, nil
}
