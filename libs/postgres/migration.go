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
)

// Migrations is a numbered series of SQL files, 001_<what>.sql upwards, in the root of FS. A service has one of its own and takes those of the
// libraries that keep tables in its schema (outbox, cursor): each series has its own version, in the table
// <name>_migrations, so that none has to know the others' numbers.
//
// A released file is never changed. Since the version before runs beside the new one during an upgrade, a file only adds; what it
// makes unused goes with a later release.
type Migrations struct {
	// Name of the series: lower-case letters, digits and underscores.
	Name string
	FS   fs.FS
}

// Migrate creates the schema that the pool's connections use, and brings each series to its newest version, in the order given. Replicas may call it at once. It waits
// for a database that is down; an error of a migration itself is returned, and nothing of that file stays. A schema that is
// newer than the program is left as it is.
func Migrate(ctx context.Context, pool *pgxpool.Pool, logger *slog.Logger, series ...Migrations) error {
	for _, s := range series {
		if !validName(s.Name) {
			return fmt.Errorf("name %q of a migration series is not made of lower-case letters, digits and underscores", s.Name)
		}
	}
	return persist(ctx, Config{}.retry(), func() error {
		conn, err := pool.Acquire(ctx)
		if err == nil {
			err = migrateOn(ctx, conn.Conn(), logger, series)
			conn.Release()
		}
		var content contentError
		if err != nil && unreachable(err) && !errors.As(err, &content) && !errors.Is(err, ErrUnsupportedVersion) {
			logger.WarnContext(ctx, "waiting for the database", "error", err)
			return temporaryError{err}
		}
		return err
	}, "migrate the database")
}

// contentError marks an error of the files, which waiting does not mend.
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

// createSchema takes a lock of its own: two sessions that create the same schema at once do not wait for each other, one fails.
func createSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	return InTx(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('lockstep/schema/' || $1::text, 0))", schema); err != nil {
			return fmt.Errorf("lock the creation of schema %s: %w", schema, err)
		}
		var exists bool
		// Asked first: CREATE SCHEMA IF NOT EXISTS needs the right to create even where there is nothing to create.
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema).Scan(&exists); err != nil {
			return fmt.Errorf("look for schema %s: %w", schema, err)
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
		logger.InfoContext(ctx, "migrating the database", "series", s.Name, "version", sequence, "file", name)
	}
	version, err := migrator.GetCurrentVersion(ctx)
	if err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	if known := int32(len(migrator.Migrations)); version > known {
		logger.InfoContext(ctx, "the database is newer than this program", "series", s.Name, "version", version, "known", known)
		return nil
	}
	if err := migrator.Migrate(ctx); err != nil {
		return fmt.Errorf("run the files: %w", err)
	}
	return nil
}
