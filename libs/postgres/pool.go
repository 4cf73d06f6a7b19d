package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
)

// MinVersion is the oldest supported major version of PostgreSQL.
const MinVersion = 15

// ErrUnsupportedVersion reports a server older than MinVersion.
var ErrUnsupportedVersion = errors.New("unsupported PostgreSQL version")

const (
	defaultMaxConnections = 10
	connectTimeout        = 5 * time.Second
	checkTimeout          = 2 * time.Second
	keepAlive             = 15 * time.Second
)

// Config configures the connection to a database.
type Config struct {
	// URL is the connection string, as URL or keyword=value pairs. Required.
	URL string

	// Password returns the password for a new connection. Nil: the one of URL.
	Password func() (string, error)

	// Schema is the service's schema: the search path of every connection, created by Migrate.
	// Lower-case letters, digits and underscores. Defaults to the server's setting, usually public.
	Schema string

	// ApplicationName appears in pg_stat_activity. Defaults to "lockstep".
	ApplicationName string

	// MaxConnections bounds the pool of this process. Defaults to pool_max_conns of the URL, else
	// 10.
	MaxConnections int32

	// IdleInTransactionTimeout is the idle time after which the server ends a transaction. Defaults
	// to 1 min.
	IdleInTransactionTimeout time.Duration

	// Retry bounds the pauses while the database is down. Defaults to 100 ms and 5 s.
	Retry retry.Policy
}

func (c Config) retryPolicy() retry.Policy {
	return c.Retry.OrDefault(retry.Policy{Min: 100 * time.Millisecond, Max: 5 * time.Second})
}

// Open returns a pool that connects and reconnects on demand. The caller closes it.
func Open(cfg Config) (*pgxpool.Pool, error) {
	pool, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	if cfg.Schema != "" && !validName(cfg.Schema) {
		return nil, fmt.Errorf("schema %q: only lower-case letters, digits and underscores are allowed", cfg.Schema)
	}
	switch {
	case cfg.MaxConnections > 0:
		pool.MaxConns = cfg.MaxConnections
	case !strings.Contains(cfg.URL, "pool_max_conns"):
		pool.MaxConns = defaultMaxConnections
	}
	pool.MaxConnLifetime = time.Hour
	pool.MaxConnLifetimeJitter = 5 * time.Minute
	pool.MaxConnIdleTime = 5 * time.Minute
	pool.AfterConnect = func(_ context.Context, conn *pgx.Conn) error { return checkVersion(conn) }

	if cfg.Password != nil {
		pool.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
			var err error
			conn.Password, err = cfg.Password()
			return err
		}
	}

	conn := pool.ConnConfig
	if conn.ConnectTimeout == 0 {
		conn.ConnectTimeout = connectTimeout
	}
	if conn.Host != "" && !strings.HasPrefix(conn.Host, "/") {
		conn.DialFunc = (&net.Dialer{KeepAlive: keepAlive}).DialContext
	}
	for name, value := range sessionSettings(cfg) {
		if _, given := conn.RuntimeParams[name]; !given {
			conn.RuntimeParams[name] = value
		}
	}
	if cfg.Schema != "" {
		conn.RuntimeParams["search_path"] = cfg.Schema
	}
	opened, err := pgxpool.NewWithConfig(context.Background(), pool)
	if err != nil {
		return nil, fmt.Errorf("open the database pool: %w", err)
	}
	return opened, nil
}

// connectAlone opens a connection that is not of the pool, with the settings of the pool and its password.
func connectAlone(ctx context.Context, pool *pgxpool.Pool, notified pgconn.NotificationHandler) (*pgx.Conn, error) {
	config := pool.Config()
	config.ConnConfig.OnNotification = notified
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err //nolint:wrapcheck // an error of this package
		}
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig) //nolint:wrapcheck // the caller says what it is for
}

func sessionSettings(cfg Config) map[string]string {
	idle := cfg.IdleInTransactionTimeout
	if idle == 0 {
		idle = time.Minute
	}
	name := cfg.ApplicationName
	if name == "" {
		name = "lockstep"
	}
	return map[string]string{
		"application_name":                    name,
		"timezone":                            "UTC",
		"idle_in_transaction_session_timeout": strconv.FormatInt(idle.Milliseconds(), 10),
		// A client whose machine vanished loses its session and its locks after 30 s.
		"tcp_keepalives_idle":     "15",
		"tcp_keepalives_interval": "5",
		"tcp_keepalives_count":    "3",
	}
}

func validName(name string) bool {
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r == '_'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}

// Connect opens a pool and waits until the database answers or ctx ends.
func Connect(ctx context.Context, cfg Config, logger *slog.Logger) (*pgxpool.Pool, error) {
	pool, err := Open(cfg)
	if err != nil {
		return nil, err
	}
	if err := waitUntilReady(ctx, pool, cfg.retryPolicy(), logger); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// WaitUntilReady waits until the pool's database answers. It returns an error when ctx ends or the
// server is too old.
func WaitUntilReady(ctx context.Context, pool *pgxpool.Pool, logger *slog.Logger) error {
	return waitUntilReady(ctx, pool, Config{}.retryPolicy(), logger)
}

func waitUntilReady(ctx context.Context, pool *pgxpool.Pool, policy retry.Policy, logger *slog.Logger) error {
	err := policy.Do(ctx, func() error {
		err := pool.Ping(ctx)
		if errors.Is(err, ErrUnsupportedVersion) {
			return retry.Permanent(err)
		}
		return err //nolint:wrapcheck // wrapped below
	}, logWait(ctx, logger))
	if err != nil {
		return fmt.Errorf("wait for the database: %w", err)
	}
	return nil
}

// waitingMessage is logged before each pause while the database is unreachable.
const waitingMessage = "waiting for the database"

func logWait(ctx context.Context, logger *slog.Logger) func(error, time.Duration) {
	return func(err error, pause time.Duration) {
		if ctx.Err() == nil {
			logger.WarnContext(ctx, waitingMessage, slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
		}
	}
}

// checkVersion checks the version that the server sends on connect, such as "15.18 (Debian
// 15.18-0+deb12u1)".
func checkVersion(conn *pgx.Conn) error {
	sent := conn.PgConn().ParameterStatus("server_version")
	end := strings.IndexFunc(sent, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(sent)
	}
	major, err := strconv.Atoi(sent[:end])
	if err != nil {
		return fmt.Errorf("parse server version %q: %w", sent, err)
	}
	if major < MinVersion {
		return fmt.Errorf("%w: the server has version %s, the minimum is %d", ErrUnsupportedVersion, sent, MinVersion)
	}
	return nil
}

// Check returns a health check that fails when the database does not answer within 2 s.
func Check(pool *pgxpool.Pool) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		if err := pool.Ping(ctx); err != nil {
			return fmt.Errorf("database does not answer: %w", err)
		}
		return nil
	}
}
