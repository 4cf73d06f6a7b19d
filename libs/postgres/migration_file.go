package postgres

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
)

// migrationFile is a file of a series, or its row in applied_migrations.
type migrationFile struct {
	version int32
	name    string
	sha256  []byte
}

// files returns the files of the series in the order of their versions.
func (s Migrations) files() ([]migrationFile, error) {
	names, err := migrate.FindMigrations(s.FS)
	if err != nil {
		return nil, fmt.Errorf("find the files: %w", err)
	}
	files := make([]migrationFile, len(names))
	for i, name := range names {
		content, err := fs.ReadFile(s.FS, name)
		if err != nil {
			return nil, fmt.Errorf("read a file: %w", err)
		}
		sum := sha256.Sum256(content)
		files[i] = migrationFile{version: int32(i + 1), name: name, sha256: sum[:]}
	}
	return files, nil
}

// record returns the statement that records the file as applied.
func (f migrationFile) record(series string) string {
	return fmt.Sprintf(`INSERT INTO applied_migrations (series, version, file, sha256) VALUES ('%s', %d, '%s', '\x%x')`,
		series, f.version, f.name, f.sha256)
}

// checkApplied compares the files with the ones that the database has applied. Up to the version, it records files
// that a release without checksums has applied.
func (s Migrations) checkApplied(ctx context.Context, conn *pgx.Conn, files []migrationFile, version int32) error {
	rows, err := conn.Query(ctx, `SELECT version, file, sha256 FROM applied_migrations WHERE series = $1`, s.Name)
	if err != nil {
		return fmt.Errorf("read the applied files: %w", err)
	}
	applied := map[int32]migrationFile{}
	var row migrationFile
	_, err = pgx.ForEachRow(rows, []any{&row.version, &row.name, &row.sha256}, func() error {
		applied[row.version] = row
		row.sha256 = nil
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the applied files: %w", err)
	}
	for _, f := range files[:min(int(version), len(files))] {
		before, found := applied[f.version]
		switch {
		case !found:
			if _, err := conn.Exec(ctx, f.record(s.Name)+" ON CONFLICT DO NOTHING"); err != nil {
				return fmt.Errorf("record %s as applied: %w", f.name, err)
			}
		case !bytes.Equal(before.sha256, f.sha256):
			return contentError{fmt.Errorf(
				"%s differs from %s, which this database has applied (sha256 %x, applied %x): "+
					"start a release with the applied file; a change belongs in a new file",
				f.name, before.name, f.sha256, before.sha256,
			)}
		}
	}
	return nil
}
