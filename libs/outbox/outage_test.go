package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/pgtest"
)

func TestPublishingContinuesAfterAnOutageOfNATS(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	p := b.publisher(func(c *outbox.Config) { c.StaleAfter = time.Nanosecond })
	b.run(p)
	b.changes("x", 2)
	b.awaitEmpty()
	require.NoError(t, p.Check(t.Context()))
	b.server.Down()
	b.changes("x", 3)
	message := regexp.MustCompile(`^outbox: 3 unpublished messages, the oldest for [0-9ms]+; NATS is not connected$`)
	require.Eventually(t, func() bool {
		err := p.Check(t.Context())
		return err != nil && message.MatchString(err.Error())
	}, timeout, time.Millisecond)
	b.restart()
	b.awaitEmpty()
	require.Equal(t, changesUpTo(5), b.onStream()["fact.x"])
}

func TestPublishingContinuesAfterRestartsOfNATS(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.run(b.publisher(func(c *outbox.Config) { c.AckTimeout = 500 * time.Millisecond }))
	var writer errgroup.Group
	const changes = 200
	half := make(chan struct{})
	writer.Go(func() error {
		for i := range changes {
			if i == changes/2 {
				close(half)
			}
			if err := b.change(t.Context(), b.pool, "x"); err != nil {
				return err
			}
		}
		return nil
	})
	<-half
	b.restart()
	require.NoError(t, writer.Wait())
	b.awaitEmpty()
	require.Equal(t, changesUpTo(changes), b.onStream()["fact.x"])
}

func TestStreamThatDoesNotAnswerAfterAReconnectDelaysNoOther(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "nats-server.conf")
	require.NoError(t, os.WriteFile(config, []byte(`
authorization {
  users: [
    {user: test, password: test}
    {user: publisher, password: test, permissions: {publish: {deny: "$JS.API.STREAM.INFO.SILENT"}}}
  ]
}`), 0o600))
	b := &fixture{t: t, url: pgtest.Database(t), server: natstest.Start(t, natsd.Options{ConfigFile: config})}
	b.pool = b.connect(b.url)
	b.migrate()
	b.js = natstest.JetStream(t, b.server, nats.UserInfo("test", "test"))
	b.createStream()
	_, err := b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SILENT", Subjects: []string{"silent"}})
	require.NoError(t, err)
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	b.options = []nats.Option{nats.UserInfo("publisher", "test"), quiet}
	b.run(b.publisher(nil))
	b.changes("x", 1)
	require.NoError(t, postgres.InTx(t.Context(), b.pool, func(tx pgx.Tx) error {
		return outbox.Insert(t.Context(), tx, &nats.Msg{Subject: "silent"})
	}))
	b.awaitEmpty()

	b.restart()
	b.changes("x", 1)
	b.awaitStream(map[string][]string{"fact.x": changesUpTo(2)})
}

func TestAnOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	registry := prometheus.NewRegistry()
	metrics, err := outbox.NewMetrics(registry)
	require.NoError(t, err)
	var log bytes.Buffer
	b.changes("x", 1)
	require.NoError(t, b.js.DeleteStream(t.Context(), stream))
	stop := b.run(b.publisher(func(c *outbox.Config) {
		c.Metrics, c.Logger = metrics, slog.New(slog.NewTextHandler(&log, nil))
	}))
	require.Eventually(t, func() bool { return metric(t, registry, "lockstep_outbox_failures_total") >= 5 },
		timeout, 5*time.Millisecond)
	stop()
	require.Equal(t, 1, strings.Count(log.String(), "publishing an outbox message failed"), log.String())
}

func TestPublishingContinuesAfterARestartOfPostgreSQL(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	b := newFixtureOn(t, server.URL())
	p := b.publisher(nil)
	b.run(p)
	b.changes("x", 3)
	b.awaitEmpty()
	server.Kill()
	require.ErrorContains(t, p.Check(t.Context()), "read the outbox")
	require.NoError(t, server.Restart(t.Context()))
	require.Eventually(t, func() bool { return b.pool.Ping(t.Context()) == nil }, timeout, time.Millisecond)
	b.changes("x", 3)
	b.awaitEmpty()
	require.Equal(t, changesUpTo(6), b.onStream()["fact.x"])
}

func TestAnotherReplicaTakesOver(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	stops := []func(){b.run(b.publisher(nil)), b.run(b.publisher(nil))}
	b.changes("x", 3)
	b.awaitEmpty()
	stops[0]()
	b.changes("x", 3)
	b.awaitEmpty()
	require.Equal(t, changesUpTo(6), b.onStream()["fact.x"])
	stops[1]()
	b.changes("x", 1)
	require.Equal(t, 1, b.waiting(), "no publisher is running")
}

// republish inserts the present state of every entity again.
func (f *fixture) republish(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `SELECT name, changes FROM entities ORDER BY name FOR UPDATE`)
	if err != nil {
		return err
	}
	type entity struct {
		Name    string
		Changes int
	}
	entities, err := pgx.CollectRows(rows, pgx.RowToStructByPos[entity])
	if err != nil {
		return err
	}
	for _, e := range entities {
		if err := outbox.Insert(ctx, tx, message(e.Name, e.Changes)); err != nil {
			return err
		}
	}
	return nil
}

func TestRestoredStreamReceivesTheCurrentState(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	found := make(chan outbox.Restoration, 10)
	refusals := 1
	b.run(b.publisher(func(c *outbox.Config) {
		c.Restored = func(ctx context.Context, tx pgx.Tx, r outbox.Restoration) error {
			if err := b.republish(ctx, tx); err != nil {
				return err
			}
			if refusals--; refusals >= 0 {
				return errors.New("not this time")
			}
			found <- r
			return nil
		}
	}))
	b.changes("x", 2)
	b.awaitEmpty()
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, b.server.Snapshot(copied))
	natstest.Reconnected(t, b.js.Conn())
	b.changes("x", 3)
	b.changes("y", 1)
	b.awaitEmpty()
	require.Equal(t, map[string][]string{"fact.x": changesUpTo(5), "fact.y": changesUpTo(1)}, b.onStream())

	// Without a write, the reconnect detects the restoration.
	require.NoError(t, b.server.Restore(copied))
	natstest.Reconnected(t, b.js.Conn())
	require.Equal(t, stream, (<-found).Stream)
	// Messages 3 and 4 are lost, the current state is published.
	b.awaitStream(map[string][]string{"fact.x": {"1", "2", "5"}, "fact.y": {"1"}})
	b.changes("x", 1)
	b.awaitEmpty()
	require.Equal(t, []string{"1", "2", "5", "6"}, b.onStream()["fact.x"])

	// Without a reconnect, the first acknowledgement detects the recreated stream.
	require.NoError(t, b.js.DeleteStream(t.Context(), stream))
	b.createStream()
	b.changes("y", 1)
	require.Equal(t, stream, (<-found).Stream)
	b.awaitStream(map[string][]string{"fact.x": {"6"}, "fact.y": {"2", "2"}})
	require.Empty(t, found, "each restoration is detected once")
}

func TestRestoredDatabasePublishesAboveTheStreams(t *testing.T) {
	t.Parallel()
	for name, pending := range map[string]bool{"with nothing waiting": false, "with a message waiting in the copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			stop := b.run(b.publisher(nil))
			b.changes("x", 3)
			b.awaitEmpty()
			stop()
			if pending {
				b.changes("x", 1)
			}
			restored := b.copyDatabase()
			stop = b.run(b.publisher(nil))
			b.changes("x", 5)
			b.awaitEmpty()
			stop()
			want := b.onStream()["fact.x"]

			b.pool = b.connect(restored)
			found := make(chan outbox.Restoration, 10)
			b.run(b.publisher(func(c *outbox.Config) {
				c.Restored = func(_ context.Context, _ pgx.Tx, r outbox.Restoration) error {
					found <- r
					return nil
				}
			}))
			require.Empty(t, (<-found).Stream)
			b.changes("x", 2) // the restored database continues with old ids
			b.awaitEmpty()
			if pending {
				want = append(want, "4")
				want = append(want, "5", "6")
			} else {
				want = append(want, "4", "5")
			}
			require.Equal(t, want, b.onStream()["fact.x"])
			require.Empty(t, found)
		})
	}
}

// A change locks its entity first and the outbox last. A restoration that locked the outbox first would deadlock with
// it, and one of both would fail.
func TestRestorationDoesNotDeadlockWithChanges(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.restoreOlderDatabase()
	calls, locked, restoring := 0, make(chan struct{}), make(chan struct{})
	committed := make(chan error, 1)
	go func() {
		committed <- postgres.InTx(t.Context(), b.pool, func(tx pgx.Tx) error {
			change, err := changed(t.Context(), tx, "x")
			close(locked)
			if err != nil {
				return err
			}
			<-restoring
			return outbox.Insert(t.Context(), tx, message("x", change))
		})
	}()
	<-locked
	restored := make(chan struct{})
	b.run(b.publisher(func(c *outbox.Config) {
		c.Restored = func(ctx context.Context, tx pgx.Tx, _ outbox.Restoration) error {
			if calls++; calls == 1 {
				close(restoring)
			}
			err := b.republish(ctx, tx)
			if err == nil {
				close(restored)
			}
			return err
		}
	}))
	require.NoError(t, <-committed)
	<-restored
	require.Equal(t, 1, calls)
}

func TestFailedRestorationOfTheDatabaseIsRepeated(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.restoreOlderDatabase()
	calls, restored := 0, make(chan struct{})
	b.run(b.publisher(func(c *outbox.Config) {
		c.Restored = func(ctx context.Context, tx pgx.Tx, _ outbox.Restoration) error {
			if calls++; calls == 1 {
				return errors.New("not this time")
			}
			close(restored)
			return b.republish(ctx, tx)
		}
	}))
	select {
	case <-restored:
	case <-time.After(timeout):
		require.Fail(t, "the restoration was forgotten")
	}
	b.awaitEmpty()
	want := append(changesUpTo(8), "3")
	b.awaitStream(map[string][]string{"fact.x": want})
	require.Equal(t, 2, calls)
}

// restoreOlderDatabase publishes 8 changes of an entity, and replaces the database with a copy from after the third.
func (f *fixture) restoreOlderDatabase() {
	f.t.Helper()
	stop := f.run(f.publisher(nil))
	f.changes("x", 3)
	f.awaitEmpty()
	stop()
	restored := f.copyDatabase()
	stop = f.run(f.publisher(nil))
	f.changes("x", 5)
	f.awaitEmpty()
	stop()
	f.pool = f.connect(restored)
}

// copyDatabase copies the fixture's database, as a backup does, and returns the copy's connection string. The
// pool is opened again.
func (f *fixture) copyDatabase() string {
	f.t.Helper()
	name := f.pool.Config().ConnConfig.Database
	f.pool.Close()
	copied := pgtest.Database(f.t)
	parsed, err := url.Parse(copied)
	require.NoError(f.t, err)
	target := parsed.Path[1:]
	parsed.Path = "/postgres"
	admin, err := pgx.Connect(f.t.Context(), parsed.String())
	require.NoError(f.t, err)
	_, err = admin.Exec(f.t.Context(), `DROP DATABASE `+target+` WITH (FORCE)`)
	require.NoError(f.t, err)
	require.Eventually(f.t, func() bool { // wait until PostgreSQL has closed the sessions
		_, err = admin.Exec(f.t.Context(), `CREATE DATABASE `+target+` TEMPLATE `+name)
		return err == nil
	}, timeout, 10*time.Millisecond)
	require.NoError(f.t, admin.Close(context.Background()))
	f.pool = f.connect(f.url)
	return copied
}

func TestRowsArePublishedByNotificationAndByInterval(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		interval time.Duration
		insert   string
	}{
		"notified": {interval: time.Hour},
		"timer": {
			interval: time.Millisecond,
			insert:   `INSERT INTO outbox (subject, header, data) VALUES ('fact.x', '{}', '1')`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFixture(t)
			p := b.publisher(func(c *outbox.Config) { c.Interval = test.interval })
			waits := make(chan struct{}, 1)
			p.OnWaiting(func() {
				select {
				case waits <- struct{}{}:
				default:
				}
			})
			b.run(p)
			<-waits
			if test.insert == "" {
				b.changes("x", 1)
			} else {
				_, err := b.pool.Exec(t.Context(), test.insert)
				require.NoError(t, err)
			}
			b.awaitEmpty()
			require.Equal(t, changesUpTo(1), b.onStream()["fact.x"])
		})
	}
}

func TestRunEndsCleanlyDuringABatch(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.changes("x", 50)
	p := b.publisher(nil)
	reached := make(chan struct{})
	p.OnPublish(func(_ context.Context, _ string, id int64) {
		if id == 10 {
			close(reached)
		}
	})
	stop := b.run(p)
	<-reached
	stop()
	onStream := len(b.onStream()["fact.x"])
	require.GreaterOrEqual(
		t, 50-b.waiting(), onStream-1, "what was acknowledged is removed; at most the one in flight is not",
	)
	b.run(b.publisher(nil))
	b.awaitEmpty()
	require.Equal(t, changesUpTo(50), b.onStream()["fact.x"])
}

func TestRolledBackMessageIsNotPublished(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.run(b.publisher(nil))
	refusal := errors.New("no")
	require.ErrorIs(t, postgres.InTx(t.Context(), b.pool, func(tx pgx.Tx) error {
		require.NoError(t, changeIn(t.Context(), tx, "x"))
		return refusal
	}), refusal)
	b.changes("x", 1)
	b.awaitEmpty()
	require.Equal(t, changesUpTo(1), b.onStream()["fact.x"])
}
