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
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/internal/delay"
)

// MinVersion is the oldest major version of PostgreSQL that is accepted.
const MinVersion = 15

// ErrUnsupportedVersion says that the server is older than MinVersion.
var ErrUnsupportedVersion = errors.New("PostgreSQL is too old")

const (
	defaultMaxConnections = 10
	connectTimeout        = 5 * time.Second
	checkTimeout          = 2 * time.Second
	keepAlive             = 15 * time.Second
)

// Config says which database to use, and how.
type Config struct {
	// URL is the connection string, as URL or keyword=value pairs. Required.
	URL string

	// Schema is the service's own schema: the search path of every connection, created by Migrate. Lower-case letters, digits
	// and underscores. Defaults to what the server says, usually public.
	Schema string

	// ApplicationName is what pg_stat_activity shows. Defaults to "lockstep".
	ApplicationName string

	// MaxConnections bounds the pool of this process. Defaults to pool_max_conns of the URL, else 10.
	MaxConnections int32

	// IdleInTransactionTimeout is when the server ends a transaction that does nothing, and frees its locks. Defaults to 1 min.
	IdleInTransactionTimeout time.Duration

	// RetryMin and RetryMax bound the pauses while the database is down. Default to 100 ms and 5 s.
	RetryMin, RetryMax time.Duration
}

func (c Config) retry() delay.Range {
	r := delay.Range{Min: c.RetryMin, Max: c.RetryMax}
	return r.Or(delay.Range{Min: 100 * time.Millisecond, Max: 5 * time.Second})
}

// Open returns a pool without connecting: its connections are made, and made again, when they are needed. The caller closes it.
func Open(cfg Config) (*pgxpool.Pool, error) {
	pool, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	if cfg.Schema != "" && !validName(cfg.Schema) {
		return nil, fmt.Errorf("schema %q is not made of lower-case letters, digits and underscores", cfg.Schema)
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
		// A client whose machine vanished loses its session, and with it its locks, after half a minute.
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

// Connect opens a pool and waits until the database answers, however long that takes; ctx ends the wait.
func Connect(ctx context.Context, cfg Config, logger *slog.Logger) (*pgxpool.Pool, error) {
	pool, err := Open(cfg)
	if err != nil {
		return nil, err
	}
	if err := await(ctx, pool, cfg.retry(), logger); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// WaitUntilReady waits until the pool's database answers. It returns an error when ctx is done and when the server is too old.
func WaitUntilReady(ctx context.Context, pool *pgxpool.Pool, logger *slog.Logger) error {
	return await(ctx, pool, Config{}.retry(), logger)
}

func await(ctx context.Context, pool *pgxpool.Pool, retry delay.Range, logger *slog.Logger) error {
	return persist(ctx, retry, func() error {
		err := pool.Ping(ctx)
		if err == nil || errors.Is(err, ErrUnsupportedVersion) {
			return err //nolint:wrapcheck // wrapped by persist
		}
		if ctx.Err() == nil {
			logger.WarnContext(ctx, "waiting for the database", "error", err)
		}
		return temporaryError{err}
	}, "wait for the database")
}

// temporaryError marks what persist tries again.
type temporaryError struct{ error }

func (e temporaryError) Unwrap() error { return e.error }

// persist calls attempt until it returns something else than a temporaryError.
func persist(ctx context.Context, retry delay.Range, attempt func() error, what string) error {
	pause := delay.New(retry)
	for {
		err := attempt()
		if err == nil {
			return nil
		}
		var temporary temporaryError
		if !errors.As(err, &temporary) {
			return fmt.Errorf("%s: %w", what, err)
		}
		if pause.Wait(ctx) != nil {
			return fmt.Errorf("%s: %w (last answer: %w)", what, context.Cause(ctx), temporary.error)
		}
	}
}

// checkVersion reads the version that the server sends with every new connection, such as "15.18 (Debian 15.18-0+deb12u1)".
func checkVersion(conn *pgx.Conn) error {
	sent := conn.PgConn().ParameterStatus("server_version")
	end := strings.IndexFunc(sent, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(sent)
	}
	major, err := strconv.Atoi(sent[:end])
	if err != nil {
		return fmt.Errorf("the server sent version %q: %w", sent, err)
	}
	if major < MinVersion {
		return fmt.Errorf("%w: the server is version %s, need at least %d", ErrUnsupportedVersion, sent, MinVersion)
	}
	return nil
}

// Check returns a health check: nil while the database answers within 2 s, else the reason.
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
