package postgres_test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestPasswordOfAnyCharactersIsReadForEachConnection(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	admin, err := pgx.Connect(t.Context(), database)
	require.NoError(t, err)
	defer admin.Close(t.Context())
	change := func(statement, password string) {
		_, err := admin.Exec(t.Context(), statement+" PASSWORD '"+password+"'")
		require.NoError(t, err)
	}
	const first, second = `a:/?#[]@%2f "\ü`, `$$;--&x=y`
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(first+"\n"), 0o600))
	change("CREATE ROLE settings_test LOGIN", first)
	_, err = admin.Exec(t.Context(), "CREATE SCHEMA settings_test AUTHORIZATION settings_test")
	require.NoError(t, err)
	defer func() {
		_, err := admin.Exec(t.Context(), "DROP SCHEMA settings_test; DROP ROLE settings_test")
		require.NoError(t, err)
	}()

	address, err := url.Parse(database)
	require.NoError(t, err)
	address.User = url.User("settings_test")
	settings := postgres.Settings{URL: config.URL(address.String()), PasswordFile: config.SecretFile(file)}
	require.Empty(t, settings.Validate())
	pool, err := settings.Open("settings_test")
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, pool.Ping(t.Context()))

	change("ALTER ROLE settings_test", second)
	require.NoError(t, os.WriteFile(file, []byte(second), 0o600))
	pool.Reset()
	require.NoError(t, pool.Ping(t.Context()))

	// Locks and listeners have connections of their own.
	held, err := postgres.Lock{Name: "settings_test"}.Try(t.Context(), pool)
	require.NoError(t, err)
	require.NotNil(t, held)
	require.NoError(t, held.Release(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	listener := postgres.NewChangeListener(pool, "settings_test", strconv.Atoi)
	require.NoError(t, listener.Run(ctx, cancel))

	require.NoError(t, os.Remove(file))
	pool.Reset()
	require.ErrorContains(t, pool.Ping(t.Context()), "database.password_file")
}

func TestDatabaseNeedsOneConnectionString(t *testing.T) {
	t.Parallel()
	both := postgres.Settings{URL: "postgres://x", URLFile: config.SecretFile("x")}
	for _, settings := range []postgres.Settings{{}, both, {URL: "postgres://x", MaxConnections: -1}} {
		require.Len(t, settings.Validate(), 1)
	}
}
