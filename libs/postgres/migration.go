package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/tern/v2/migrate"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
)

// Migrations is a numbered series of SQL files, 001_<what>.sql upwards, in the root of FS. A
// service has its own series and adds those of the libraries that keep tables in its schema
// (outbox, cursor). Each series has its own version, in the table <name>_migrations.
//
// A released file never changes: the table applied_migrations has the checksum of each applied file, and [Migrate]
// refuses another content. The previous version of the service runs beside the new one during an upgrade, so a file
// only adds; a later release removes what is unused.
type Migrations struct {
	// Name of the series: lower-case letters, digits and underscores.
	Name string
	FS   fs.FS
}

// Migrate creates the schema of the pool's connections and brings each series to its newest
// version, in the given order. Replicas may call it at the same time. It waits for a database that
// is down, and for missing privileges: the roles of an upgraded database get their schemas after it
// answers. Another error of a migration is returned, and that file is rolled back. A schema that is
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
		mayPass := isTemporary(err) || lacksPrivilege(err)
		if err == nil || mayPass && !errors.As(err, &content) && !errors.Is(err, ErrUnsupportedVersion) {
			return err
		}
		return retry.Permanent(err)
	}, logWait(ctx, logger))
	if err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}

func lacksPrivilege(err error) bool {
	const insufficientPrivilege = "42501"
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refusal.Code == insufficientPrivilege
}

// contentError marks an error in a migration file, which a retry cannot mend.
type contentError struct{ error }

func (e contentError) Unwrap() error { return e.error }

func migrateOn(ctx context.Context, conn *pgx.Conn, logger *slog.Logger, series []Migrations) error {
	schema := conn.Config().RuntimeParams["search_path"]
	if schema == "" {
		schema = "public"
	}
	if err := prepareSchema(ctx, conn, schema); err != nil {
		return err
	}
	for _, s := range series {
		if err := s.run(ctx, conn, logger, schema); err != nil {
			return fmt.Errorf("series %s: %w", s.Name, err)
		}
	}
	return nil
}

// prepareSchema creates the schema and the table of applied files. It takes a lock of its own: without it, one of two
// sessions that create the same schema fails.
func prepareSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	return InTx(ctx, conn, func(tx pgx.Tx) error {
		const lock = "SELECT pg_advisory_xact_lock(hashtextextended('lockstep/schema/' || $1::text, 0))"
		if _, err := tx.Exec(ctx, lock, schema); err != nil {
			return fmt.Errorf("lock the creation of schema %s: %w", schema, err)
		}
		table := pgx.Identifier{schema, "applied_migrations"}.Sanitize()
		for _, object := range []struct{ find, name, create string }{
			{
				// CREATE SCHEMA IF NOT EXISTS needs the privilege to create even when the schema exists.
				"SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema,
				"CREATE SCHEMA " + pgx.Identifier{schema}.Sanitize(),
			},
			{
				"SELECT to_regclass($1) IS NOT NULL", table,
				"CREATE TABLE " + table + ` (
					series  text  NOT NULL,
					version int   NOT NULL,
					file    text  NOT NULL,
					sha256  bytea NOT NULL,
					PRIMARY KEY (series, version)
				)`,
			},
		} {
			var exists bool
			if err := tx.QueryRow(ctx, object.find, object.name).Scan(&exists); err != nil {
				return fmt.Errorf("find %s: %w", object.name, err)
			}
			if exists {
				continue
			}
			if _, err := tx.Exec(ctx, object.create); err != nil {
				return fmt.Errorf("create %s: %w", object.name, err)
			}
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
	files, err := s.files()
	if err != nil {
		return contentError{err}
	}
	if err := s.checkApplied(ctx, conn, files, version); err != nil {
		return err
	}
	if known := int32(len(migrator.Migrations)); version > known {
		logger.InfoContext(ctx, "database schema is newer than this program", slog.String(logkey.Name, s.Name),
			slog.Int(logkey.Version, int(version)), slog.Int(logkey.KnownVersion, int(known)))
		return nil
	}
	for i, f := range files {
		// In the transaction of the file.
		migrator.Migrations[i].UpSQL += "\n;\n" + f.record(s.Name)
	}
	if err := migrator.Migrate(ctx); err != nil {
		return fmt.Errorf("run the files: %w", err)
	}
	return nil
}
