package pg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// installation is one set of PostgreSQL binaries.
type installation struct {
	dir   string
	major int
}

func (i installation) path(program string) string { return filepath.Join(i.dir, program) }

// findInstallation returns the newest usable installation, or the one of major version want when
// want is not 0.
func findInstallation(ctx context.Context, binaries string, want int) (installation, error) {
	candidates := []string{binaries}
	if binaries == "" {
		candidates = candidateFolders(ctx)
	}
	var best installation
	var seen []string
	for _, dir := range candidates {
		found, err := inspectInstallation(ctx, dir)
		if err != nil {
			if binaries != "" {
				return installation{}, err
			}
			continue
		}
		seen = append(seen, fmt.Sprintf("%d in %s", found.major, found.dir))
		if found.major < MinVersion || (want != 0 && found.major != want) {
			continue
		}
		if found.major > best.major {
			best = found
		}
	}
	switch {
	case best.major != 0:
		return best, nil
	case want != 0 && len(seen) > 0:
		return installation{}, fmt.Errorf(
			"the data folder was written by PostgreSQL %d, found only %s: install version %d or use another data folder",
			want, strings.Join(seen, ", "), want,
		)
	case len(seen) > 0:
		return installation{}, fmt.Errorf("%w (found only %s)", ErrNotInstalled, strings.Join(seen, ", "))
	default:
		return installation{}, ErrNotInstalled
	}
}

func candidateFolders(ctx context.Context) []string {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		// Distributions link single programs into PATH; initdb lies beside the real file.
		if target, err := filepath.EvalSymlinks(path); err == nil {
			path = target
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	if path, err := exec.LookPath("pg_config"); err == nil {
		out, err := exec.CommandContext(ctx, path, "--bindir").Output() //nolint:gosec // found in PATH
		if err == nil {
			dirs = append(dirs, strings.TrimSpace(string(out)))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/opt/homebrew/opt/postgresql/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		matches, err := filepath.Glob(pattern)
		if err == nil {
			dirs = append(dirs, matches...)
		}
	}
	return dirs
}

func inspectInstallation(ctx context.Context, dir string) (installation, error) {
	for _, program := range []string{"postgres", "initdb", "pg_ctl"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return installation{}, fmt.Errorf("look for %s: %w", program, err)
		}
	}
	server := filepath.Join(dir, "postgres")
	out, err := exec.CommandContext(ctx, server, "--version").Output() //nolint:gosec // the folder is the input
	if err != nil {
		return installation{}, fmt.Errorf("ask %s for its version: %w", server, err)
	}
	major, err := parseMajor(string(out))
	if err != nil {
		return installation{}, err
	}
	return installation{dir: dir, major: major}, nil
}

// parseMajor reads the major version from what "postgres --version" prints, such as
// "postgres (PostgreSQL) 15.18 (Debian 15.18-0)" or "postgres (PostgreSQL) 18beta1".
func parseMajor(printed string) (int, error) {
	_, rest, found := strings.Cut(printed, "(PostgreSQL)")
	if !found {
		return 0, fmt.Errorf("%q does not name a PostgreSQL version", strings.TrimSpace(printed))
	}
	rest = strings.TrimLeft(rest, " ")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	major, err := strconv.Atoi(rest[:end])
	if err != nil {
		return 0, fmt.Errorf("%q does not name a PostgreSQL version", strings.TrimSpace(printed))
	}
	return major, nil
}

// dataVersion returns the major version that wrote the data folder, or 0 when the folder holds no
// cluster yet.
func dataVersion(data string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the data folder's version: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("%s does not hold a version: %w", filepath.Join(data, "PG_VERSION"), err)
	}
	return major, nil
}
