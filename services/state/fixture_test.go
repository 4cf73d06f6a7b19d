package state_test

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsauth/natsadmin"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// fixture is a whole state service with its own NATS and database.
type fixture struct {
	cfg   state.Config
	nats  *natsd.Server
	keys  string
	admin string
	url   string
	http  *http.Client
	// connection of the administrator, see administrator.
	connection *nats.Conn
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newCell(t, "local", 0)
}

// newCell returns the service of a cell with a name and a number.
func newCell(t *testing.T, name topology.Cell, number int64) *fixture {
	t.Helper()
	dir := t.TempDir()
	report, err := natsauth.Init(dir, natsauth.Options{
		Cell: name, Principals: []natsauth.StaticPrincipal{natsadmin.Principal()},
	})
	require.NoError(t, err)
	b := &fixture{
		keys:  dir,
		admin: natsauth.NewToken(natsauth.TokenPersonal),
		http:  &http.Client{Transport: &http.Transport{}},
	}
	b.nats = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: filepath.Join(dir, "store")})

	key, err := seal.GenerateKey()
	require.NoError(t, err)
	seed, err := key.Seed()
	require.NoError(t, err)
	b.cfg = state.DefaultConfig()
	b.cfg.Cell.Name, b.cfg.Cell.Number = string(name), number
	b.cfg.Ops.Listen, b.cfg.API.Listen = "127.0.0.1:0", "127.0.0.1:0"
	b.cfg.Telemetry.Out = io.Discard
	b.cfg.Database.URL = config.URL(pgtest.Database(t))
	b.cfg.NATS.URL = config.URL(b.nats.ClientURL())
	b.cfg.Agents.KeysDir = dir
	b.cfg.Secrets.SealSeedFile = config.SecretValue(seed.Reveal())
	b.cfg.Secrets.DigestKeyFile = config.SecretValue(seal.GenerateDigestKey().Encode().Reveal())
	b.cfg.Bootstrap.AdminTokenFile = config.SecretValue(b.admin)
	require.Empty(t, b.cfg.Validate())
	return b
}

// administrator returns a connection of the administrator. It waits until the connection works, also after a restart
// of NATS.
func (b *fixture) administrator(t *testing.T) *nats.Conn {
	t.Helper()
	if b.connection == nil {
		b.connection = natstest.Connect(t, b.nats, natsadmin.Key(t, b.keys))
	}
	natstest.Reconnected(t, b.connection)
	return b.connection
}

// start runs the service until the test ends, or until stop is called.
func (b *fixture) start(t *testing.T) (stop func()) {
	t.Helper()
	ready := make(chan map[string]string, 1)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	cfg := b.cfg
	cfg.OnReady = func(addrs map[string]string) { ready <- addrs }
	go func() { done <- state.Main(ctx, cfg) }()
	select {
	case addrs := <-ready:
		b.url = "http://" + addrs["api"]
	case err := <-done:
		cancel()
		require.NoError(t, err, "the service ended")
	case <-time.After(2 * time.Minute):
		cancel()
		require.FailNow(t, "the service is not ready", "%v", <-done)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		b.http.CloseIdleConnections()
		cancel()
		require.NoError(t, <-done)
	}
	t.Cleanup(stop)
	return stop
}

// awaitBlocked waits until the transaction of a connection blocks another one. Within that transaction,
// pg_stat_activity does not change.
func (b *fixture) awaitBlocked(t *testing.T, holder *pgx.Conn) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.cfg.Database.URL.Reveal())
	require.NoError(t, err)
	defer conn.Close(t.Context())
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var blocks bool
		err := conn.QueryRow(t.Context(), `
			select exists (select from pg_stat_activity where $1 = any(pg_blocking_pids(pid)))`,
			holder.PgConn().PID()).Scan(&blocks)
		require.NoError(c, err)
		require.True(c, blocks)
	}, time.Minute, 10*time.Millisecond, "no transaction waits")
}
