package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/pgroles"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestPostgresInitCreatesARoleForEachService(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	admin, err := server.CreateDatabase(t.Context(), "lockstep")
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "postgres")
	init := func(args ...string) (output string) {
		var out bytes.Buffer
		command := append([]string{"postgres", "init", "--url", admin, "--dir", dir}, args...)
		require.Zero(t, Run(t.Context(), command, &out, t.Output(), "v7"))
		return out.String()
	}
	require.Equal(t, len(pgroles.Services()), strings.Count(init(), "created"))
	roleURL := func(service string) string {
		file := filepath.Join(dir, service, "password")
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Zero(t, info.Mode()&0o077, file)
		password, err := os.ReadFile(file)
		require.NoError(t, err)
		address, err := pgroles.URL(admin, service, strings.TrimSpace(string(password)))
		require.NoError(t, err)
		return address
	}
	before := roleURL("state")
	require.Equal(t, len(pgroles.Services()), strings.Count(init("--remove-own-password"), "kept"))
	require.Equal(t, before, roleURL("state"))
	for _, service := range pgroles.Services() {
		conn, err := pgx.Connect(t.Context(), roleURL(service))
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), "create table "+service+".mine ()")
		require.NoError(t, err)
		require.NoError(t, conn.Close(t.Context()))
	}
	_, err = pgx.Connect(t.Context(), admin)
	var refused *pgconn.PgError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "28P01", refused.Code)

	var stderr bytes.Buffer
	command := []string{"postgres", "init", "--url", admin, "--dir", dir, "--timeout", "1ns"}
	require.NotZero(t, Run(t.Context(), command, io.Discard, &stderr, "v7"))
	require.Contains(t, stderr.String(), "wait for the database")
	require.Equal(t, 2, Run(t.Context(), command[:2], io.Discard, &stderr, "v7"))
	require.Contains(t, stderr.String(), "--url is missing")
}
