package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/tern/v2/migrate"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
)

// Migrations is a numbered series of SQL files, 001_<what>.sql upwards, in the root of FS. A
// service has its own series and adds those of the libraries that keep tables in its schema
// (outbox, cursor). Each series has its own version, in the table <name>_migrations.
//
// A released file never changes. The previous version of the service runs beside the new one during
// an upgrade, so a file only adds; a later release removes what is unused.
type Migrations struct {
	// Name of the series: lower-case letters, digits and underscores.
	Name string
	FS   fs.FS
}

// Migrate creates the schema of the pool's connections and brings each series to its newest
// version, in the given order. Replicas may call it at the same time. It waits for a database that
// is down. An error of a migration is returned, and that file is rolled back. A schema that is
// newer than the program stays as it is.
func Migrate(ctx context.Context, pool *pgxpool.Pool, logger *slog.Logger, series ...Migrations) error {
	for _, s := range series {
		if !validName(s.Name) {
			return fmt.Errorf("migration series name %q: only lower-case letters, digits and underscores are allowed", s.Name)
		}
	}
	err := Config{}.retryPolicy().Do(ctx, func() error {
		conn, err := pool.Acquire(ctx)
		if err == nil {
			err = migrateOn(ctx, conn.Conn(), logger, series)
			conn.Release()
		}
		var content contentError
		if err == nil || isTemporary(err) && !errors.As(err, &content) && !errors.Is(err, ErrUnsupportedVersion) {
			return err
		}
		return retry.Permanent(err)
	}, logWait(ctx, logger))
	if err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

// contentError marks an error in a migration file, which a retry cannot mend.
type contentError struct{ error }

func (e contentError) Unwrap() error { return e.error }

func migrateOn(ctx context.Context, conn *pgx.Conn, logger *slog.Logger, series []Migrations) error {
	schema := conn.Config().RuntimeParams["search_path"]
	if schema == "" {
		schema = "public"
	}
	if err := createSchema(ctx, conn, schema); err != nil {
		return err
	}
	for _, s := range series {
		if err := s.run(ctx, conn, logger, schema); err != nil {
			return fmt.Errorf("series %s: %w", s.Name, err)
		}
	}
	return nil
}

// createSchema takes a lock of its own: without it, one of two sessions that create the same schema
// fails.
func createSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	return InTx(ctx, conn, func(tx pgx.Tx) error {
		const lock = "SELECT pg_advisory_xact_lock(hashtextextended('lockstep/schema/' || $1::text, 0))"
		if _, err := tx.Exec(ctx, lock, schema); err != nil {
			return fmt.Errorf("lock the creation of schema %s: %w", schema, err)
		}
		var exists bool
		// CREATE SCHEMA IF NOT EXISTS needs the privilege to create even when the schema exists.
		const find = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)"
		if err := tx.QueryRow(ctx, find, schema).Scan(&exists); err != nil {
			return fmt.Errorf("find schema %s: %w", schema, err)
		}
		if exists {
			return nil
		}
		if _, err := tx.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize()); err != nil {
			return fmt.Errorf("create schema %s: %w", schema, err)
		}
		return nil
	})
}

func (s Migrations) run(ctx context.Context, conn *pgx.Conn, logger *slog.Logger, schema string) error {
	migrator, err := migrate.NewMigrator(ctx, conn, schema+"."+s.Name+"_migrations")
	if err != nil {
		return fmt.Errorf("prepare the version table: %w", err)
	}
	if err := migrator.LoadMigrations(s.FS); err != nil {
		return contentError{fmt.Errorf("load the files: %w", err)}
	}
	migrator.OnStart = func(sequence int32, name, _, _ string) {
		logger.InfoContext(ctx, "migrating the database", slog.String(logkey.Name, s.Name),
			slog.Int(logkey.Version, int(sequence)), slog.String(logkey.File, name))
	}
	version, err := migrator.GetCurrentVersion(ctx)
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	if known := int32(len(migrator.Migrations)); version > known {
		logger.InfoContext(ctx, "database schema is newer than this program", slog.String(logkey.Name, s.Name),
			slog.Int(logkey.Version, int(version)), slog.Int(logkey.KnownVersion, int(known)))
		return nil
	}
	if err := migrator.Migrate(ctx); err != nil {
		return fmt.Errorf("run the files: %w", err)
	}
	return nil
}
