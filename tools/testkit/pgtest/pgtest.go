package pgtest

import (
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/pg"
)

// Variable is the environment variable with the connection string of a server to use instead of a
// private one.
const Variable = "DATABASE_URL"

// startTimeout bounds the start of a server on a machine that is busy with other packages' tests.
const startTimeout = 2 * time.Minute

// shared is the server of this test process: a package variable is the only way to share it between tests.
var shared sharedServer //nolint:gochecknoglobals // see above

type sharedServer struct {
	mu       sync.Mutex
	server   *pg.Server
	prepared prepared
}

func (s *sharedServer) url(tb testing.TB) string {
	tb.Helper()
	if given := os.Getenv(Variable); given != "" {
		return given
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		s.server = start(tb)
	}
	return s.server.URL()
}

func (s *sharedServer) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if given := os.Getenv(Variable); given != "" {
		return s.dropPrepared(context.Background(), given)
	}
	if s.server == nil {
		return nil
	}
	return s.server.Stop(context.Background())
}

func start(tb testing.TB) *pg.Server {
	tb.Helper()
	// Not the test's context: the shared server outlives the test that starts it.
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := pg.Start(ctx, pg.Options{})
	if err != nil {
		tb.Fatalf("start a PostgreSQL server for tests: %v", err)
	}
	return server
}

// Main runs the package's tests, stops the shared server and fails when goroutines leak. Call it
// from TestMain; it exits the process.
func Main(m *testing.M) { leaktest.Main(run{m}) }

type run struct{ m *testing.M }

// Run runs the tests and stops the server.
func (r run) Run() int {
	code := r.m.Run()
	if err := shared.stop(); err != nil {
		_, _ = os.Stderr.WriteString("stop the PostgreSQL server for tests: " + err.Error() + "\n")
		return max(code, 1)
	}
	return code
}

// Database returns the connection string of an empty database for this test. It is dropped when the test ends.
func Database(tb testing.TB) string {
	tb.Helper()
	d := create(tb)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if err := pg.DropDatabase(ctx, shared.url(tb), d.name); err != nil {
			tb.Errorf("drop the test's database: %v", err)
		}
	})
	return d.url
}

func create(tb testing.TB) database {
	tb.Helper()
	server := shared.url(tb)
	at, err := url.Parse(server)
	if err != nil {
		tb.Fatalf("%s is not a URL: %v", Variable, err)
	}
	name := "lockstep_test_" + strings.ToLower(rand.Text()[:16])
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	if err := pg.CreateDatabase(ctx, server, name); err != nil {
		tb.Fatalf("create a database for the test: %v", err)
	}
	at.Path = "/" + name
	return database{name: name, url: at.String()}
}

// Server starts a server for this test, which may kill and restart it. It stops when the test ends.
func Server(tb testing.TB) *pg.Server {
	tb.Helper()
	server := start(tb)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			tb.Errorf("stop the test's PostgreSQL server: %v", err)
		}
	})
	return server
}
