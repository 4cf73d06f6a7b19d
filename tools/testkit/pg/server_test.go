package pg_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/pg"
)

// parentVariable makes this test binary a process that starts a server until it is killed.
const parentVariable = "LOCKSTEP_TESTKIT_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentVariable) != "" {
		runParent()
		return
	}
	leaktest.Main(m)
}

func runParent() {
	server, err := pg.Start(context.Background(), pg.Options{Data: os.Getenv(parentVariable)})
	if err != nil {
		_, _ = os.Stdout.WriteString("error: " + err.Error() + "\n")
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString(server.URL() + "\n")
	select {} // until killed
}

func query[T any](t *testing.T, url, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	rows, err := conn.Query(t.Context(), sql)
	require.NoError(t, err)
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return value
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// dataFolder is a folder that the server's OS user can reach; t.TempDir closes its parents to
// others.
func dataFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "testkit-data-") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func TestTemporaryServerLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	var steps []string
	server, err := pg.Start(t.Context(), pg.Options{Progress: func(step string) { steps = append(steps, step) }})
	require.NoError(t, err)
	require.GreaterOrEqual(t, server.Version(), pg.MinVersion)
	require.Len(t, steps, 2)
	folder := query[string](t, server.URL(), "SHOW data_directory")
	url, err := server.CreateDatabase(t.Context(), "odd \"name")
	require.NoError(t, err)
	_, err = server.CreateDatabase(t.Context(), "odd \"name")
	require.NoError(t, err, "an existing database is no error")
	require.Equal(t, "odd \"name", query[string](t, url, "SELECT current_database()::text"))

	require.NoError(t, server.Stop(t.Context()))
	require.NoError(t, server.Stop(t.Context()), "a second stop does nothing")
	require.NoDirExists(t, folder)
	require.NoDirExists(t, filepath.Dir(folder))
	require.ErrorIs(t, server.Restart(t.Context()), pg.ErrStopped)
}

func TestCommittedDataSurvivesKill(t *testing.T) {
	t.Parallel()
	server, err := pg.Start(t.Context(), pg.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	execute(t, server.URL(), "CREATE TABLE fact AS SELECT 42::int AS answer")
	before := server.URL()

	server.Kill()
	<-server.Done()
	_, err = pgx.Connect(t.Context(), server.URL())
	require.Error(t, err)
	require.NoError(t, server.Restart(t.Context()))
	require.Equal(t, before, server.URL(), "the address stays the same")
	require.Equal(t, int32(42), query[int32](t, server.URL(), "SELECT answer FROM fact"))
	require.NoError(t, server.Restart(t.Context()), "a running server restarts too")
	require.Equal(t, int32(42), query[int32](t, server.URL(), "SELECT answer FROM fact"))
}

func TestKeptDataIsOpenedAgainByOneProcessAtATime(t *testing.T) {
	t.Parallel()
	data := dataFolder(t)
	server, err := pg.Start(t.Context(), pg.Options{Data: data})
	require.NoError(t, err)
	require.Equal(t, "on", query[string](t, server.URL(), "SHOW fsync"), "kept data is durable")
	execute(t, server.URL(), "CREATE TABLE fact AS SELECT 42::int AS answer")
	_, err = pg.Start(t.Context(), pg.Options{Data: data})
	require.ErrorIs(t, err, pg.ErrInUse)
	require.NoError(t, server.Stop(t.Context()))

	server, err = pg.Start(t.Context(), pg.Options{Data: data})
	require.NoError(t, err)
	require.Equal(t, int32(42), query[int32](t, server.URL(), "SELECT answer FROM fact"))
	require.NoError(t, server.Stop(t.Context()))

	require.NoError(t, os.WriteFile(filepath.Join(data, "data", "PG_VERSION"), []byte("9\n"), 0o600))
	_, err = pg.Start(t.Context(), pg.Options{Data: data})
	require.ErrorContains(t, err, "written by PostgreSQL 9")
}

func TestServerEndsWithAParentThatIsKilled(t *testing.T) {
	t.Parallel()
	t.Run("the parent is killed", func(t *testing.T) {
		t.Parallel()
		endWithParent(t, func(int) {})
	})
	t.Run("both are killed", func(t *testing.T) {
		t.Parallel()
		endWithParent(t, func(server int) { require.NoError(t, syscall.Kill(server, syscall.SIGKILL)) })
	})
}

func endWithParent(t *testing.T, end func(server int)) {
	t.Helper()
	data := dataFolder(t)
	parent := exec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), parentVariable+"="+data)
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	printed := make([]byte, 4096)
	n, err := out.Read(printed)
	require.NoError(t, err)
	url := strings.TrimSpace(string(printed[:n]))
	execute(t, url, "CREATE TABLE fact AS SELECT 42::int AS answer")
	pidFile, err := os.ReadFile(filepath.Join(data, "data", "postmaster.pid"))
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(pidFile), "\n")
	pid, err := strconv.Atoi(first)
	require.NoError(t, err)

	end(pid)
	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())

	server, err := pg.Start(t.Context(), pg.Options{Data: data})
	require.NoError(t, err, "the leftovers of the killed process are removed")
	require.Equal(t, int32(42), query[int32](t, server.URL(), "SELECT answer FROM fact"))
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH || zombie(pid) }, 30*time.Second,
		10*time.Millisecond)
	require.NoError(t, server.Stop(t.Context()))
}

// zombie reports whether the process has exited and was not reaped yet.
func zombie(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func TestMissingBinaries(t *testing.T) {
	t.Parallel()
	_, err := pg.Start(t.Context(), pg.Options{Binaries: t.TempDir()})
	require.ErrorContains(t, err, "look for postgres")
	require.ErrorContains(t, pg.ErrNotInstalled, "DATABASE_URL")
}

func TestInvalidSetting(t *testing.T) {
	t.Parallel()
	_, err := pg.Start(t.Context(), pg.Options{Settings: map[string]string{"shared_buffers": "none"}})
	require.ErrorContains(t, err, "shared_buffers")
}
