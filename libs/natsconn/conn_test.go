package natsconn_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/service"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
	"lockstep.internal/tools/testkit/port"
)

const timeout = time.Minute

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

// connect ends the connection with the test.
func connect(t *testing.T, cfg natsconn.Config) *natsconn.Conn {
	t.Helper()
	conn, err := natsconn.Connect(t.Context(), cfg, silent())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Shutdown(context.Background()) })
	return conn
}

func configFor(url string) natsconn.Config {
	cfg := natsconn.DefaultConfig()
	cfg.URL, cfg.Name, cfg.ConnectTimeout = config.URL(url), "test", timeout
	return cfg
}

func healthy(t *testing.T, conn *natsconn.Conn) {
	t.Helper()
	require.Eventually(t, func() bool { return conn.Check(t.Context()) == nil }, timeout, 5*time.Millisecond)
}

// startWith starts a server with this configuration.
func startWith(t *testing.T, format string, args ...any) *natsd.Server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats-server.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, format, args...), 0o600))
	return natstest.Start(t, natsd.Options{ConfigFile: file})
}

// freePort returns a port on which only the test listens.
func freePort(t *testing.T) int {
	t.Helper()
	held, err := port.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, held.Release()) })
	return held.Number()
}

func TestConnectWaitsForTheServer(t *testing.T) {
	t.Parallel()
	number := freePort(t)
	conn := connect(t, configFor(fmt.Sprintf("nats://user:sesame@127.0.0.1:%d", number)))
	err := conn.Check(t.Context())
	require.ErrorContains(t, err, "not connected to NATS")
	require.NotContains(t, err.Error(), "sesame")

	received := make(chan *nats.Msg, 1)
	_, err = conn.ChanSubscribe("hello", received)
	require.NoError(t, err, "subscriptions may be made before there is a connection")

	natstest.Start(t, natsd.Options{Port: number})
	healthy(t, conn)
	require.NoError(t, conn.Publish("hello", nil))
	<-received
}

func TestFailedAttemptHasItsReason(t *testing.T) {
	t.Parallel()
	stalled, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer stalled.Close()
	refused := fmt.Sprintf("nats://127.0.0.1:%d", freePort(t))
	for url, is := range map[string]func(error) bool{
		refused: func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) },
		"nats://" + stalled.Addr().String(): func(err error) bool {
			network, ok := errors.AsType[net.Error](err)
			return ok && network.Timeout()
		},
	} {
		cfg := configFor(url)
		cfg.ConnectTimeout = 50 * time.Millisecond
		conn := connect(t, cfg)
		<-conn.Failed()
		require.True(t, is(conn.DisconnectReason()), "%s: %v", url, conn.DisconnectReason())
	}
	working := connect(t, configFor(refused+","+natstest.Server(t).ClientURL()))
	healthy(t, working)
	select {
	case <-working.Failed():
		require.Fail(t, "one of the servers answers")
	default:
	}
}

func TestConnectionSurvivesARestart(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	conn := connect(t, configFor(server.ClientURL()))
	healthy(t, conn)
	js, err := conn.JetStream()
	require.NoError(t, err)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	require.NoError(t, err)
	consumer, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "c"})
	require.NoError(t, err)
	messages := make(chan string, 10)
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		messages <- m.Subject()
		_ = m.Ack()
	})
	require.NoError(t, err)
	defer consuming.Stop()
	_, err = js.Publish(t.Context(), "s.before", nil)
	require.NoError(t, err)
	require.Equal(t, "s.before", <-messages)

	server.Down()
	require.Eventually(t, func() bool { return conn.Check(t.Context()) != nil }, timeout, 5*time.Millisecond)
	require.ErrorIs(t, conn.Publish("s.lost", nil), nats.ErrReconnectBufExceeded)
	require.NoError(t, server.Restart())
	healthy(t, conn)

	require.Eventually(
		t, func() bool { _, err = js.Publish(t.Context(), "s.after", nil); return err == nil }, timeout,
		5*time.Millisecond,
	)
	require.Equal(t, "s.after", <-messages, "the failed publish was not sent later, and the subscription continues")
	require.NoError(t, testutil.CollectAndCompare(conn.Collector(), strings.NewReader(`
# HELP lockstep_nats_connected 1 while connected to NATS, else 0.
# TYPE lockstep_nats_connected gauge
lockstep_nats_connected 1
# HELP lockstep_nats_reconnects_total Reconnects to NATS.
# TYPE lockstep_nats_reconnects_total counter
lockstep_nats_reconnects_total 1
`), "lockstep_nats_connected", "lockstep_nats_reconnects_total"))
}

func TestWrongCredentialsAreReportedAndReadAgain(t *testing.T) {
	t.Parallel()
	seedFile, right := newSeed(t)
	for name, tc := range map[string]struct {
		authorization string
		setUp         func(cfg *natsconn.Config, file string)
		wrong, right  string
	}{
		"password": {`authorization { user: ada, password: right }`, func(cfg *natsconn.Config, file string) {
			cfg.User, cfg.PasswordFile = "ada", config.SecretFile(file)
		}, "wrong", "right"},
		"token": {`authorization { token: right }`, func(cfg *natsconn.Config, file string) {
			cfg.TokenFile = config.SecretFile(file)
		}, "wrong", "right"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startWith(t, "%s", tc.authorization)
			file := filepath.Join(t.TempDir(), "secret")
			require.NoError(t, os.WriteFile(file, []byte(tc.wrong+"\n"), 0o600))
			cfg := configFor(server.ClientURL())
			tc.setUp(&cfg, file)
			conn := connect(t, cfg)
			// Several attempts are refused with the same error, after which the client library
			// would give up by itself.
			for range 4 {
				reconnects := conn.Stats().Reconnects
				require.Eventually(t, func() bool { return conn.Stats().Reconnects > reconnects }, timeout, time.Millisecond)
			}
			require.Eventually(t, func() bool {
				err := conn.Check(t.Context())
				return err != nil && strings.Contains(err.Error(), "Authorization Violation")
			}, timeout, time.Millisecond)
			require.NoError(t, os.WriteFile(file, []byte(tc.right+"\n"), 0o600))
			healthy(t, conn)
		})
	}
	t.Run("nkey", func(t *testing.T) {
		t.Parallel()
		server := startWith(t, `authorization { users: [ { nkey: %s } ] }`, right)
		cfg := configFor(server.ClientURL())
		cfg.NKeySeedFile = config.SecretFile(seedFile)
		healthy(t, connect(t, cfg))

		otherSeed, unknown := newSeed(t)
		cfg.NKeySeedFile = config.SecretFile(otherSeed)
		require.Eventually(t, func() bool {
			err := connect(t, cfg).Check(t.Context())
			return err != nil && strings.Contains(err.Error(), "Authorization Violation") &&
				strings.Contains(err.Error(), "does not have the key "+unknown)
		}, timeout, time.Millisecond)
	})
}

func newSeed(t *testing.T) (string, string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := pair.Seed()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "seed")
	require.NoError(t, os.WriteFile(file, seed, 0o600))
	return file, public
}

func TestRevokedCredentialsAreReportedAndRetried(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nats-server.conf")
	write := func(password string) {
		require.NoError(t, os.WriteFile(file, []byte("authorization { user: ada, password: "+password+" }"), 0o600))
	}
	write("first")
	server := natstest.Start(t, natsd.Options{ConfigFile: file})
	cfg := configFor(server.ClientURL())
	cfg.User, cfg.PasswordFile = "ada", config.SecretValue("first")
	conn := connect(t, cfg)
	healthy(t, conn)

	write("second")
	require.NoError(t, server.Restart())
	require.Eventually(t, func() bool {
		err := conn.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "Authorization Violation")
	}, timeout, time.Millisecond)
	write("first")
	require.NoError(t, server.Restart())
	healthy(t, conn)
}

func TestDeniedPermissionsAreReported(t *testing.T) {
	t.Parallel()
	server := startWith(t, `authorization { users: [ { user: ada, password: x, permissions: {
		publish: ["allowed", "_INBOX_ada.>"], subscribe: ["allowed", "_INBOX_ada.>"] } } ] }`)
	cfg := configFor(server.ClientURL())
	cfg.User, cfg.PasswordFile, cfg.InboxPrefix = "ada", config.SecretValue("x"), "_INBOX_ada"
	conn := connect(t, cfg)
	healthy(t, conn)
	require.NoError(t, conn.PermissionDenied())

	// A request over the own inbox prefix works.
	_, err := conn.Subscribe("allowed", func(m *nats.Msg) { _ = m.Respond([]byte("yes")) })
	require.NoError(t, err)
	answer, err := conn.RequestWithContext(t.Context(), "allowed", nil)
	require.NoError(t, err)
	require.Equal(t, "yes", string(answer.Data))

	require.NoError(t, conn.Publish("forbidden.one", nil), "the caller gets no error")
	require.NoError(t, conn.Publish("forbidden.one", nil))
	denied := func(text string) func() bool {
		return func() bool {
			err := conn.PermissionDenied()
			return err != nil && strings.Contains(err.Error(), text)
		}
	}
	require.Eventually(t, denied("NATS denied publish of forbidden.one, 2 times"), timeout, time.Millisecond)
	sub, err := conn.SubscribeSync("forbidden.two")
	require.NoError(t, err)
	_, err = sub.NextMsg(timeout)
	require.ErrorIs(t, err, nats.ErrPermissionViolation)
	require.Eventually(t, denied("NATS denied subscription of forbidden.two, 1 times"), timeout, time.Millisecond)
	require.ErrorContains(t, conn.Check(t.Context()), "forbidden")

	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(conn.Collector()))
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP lockstep_nats_permission_violations_total Permission violations reported by NATS, by operation.
# TYPE lockstep_nats_permission_violations_total counter
lockstep_nats_permission_violations_total{operation=""} 0
lockstep_nats_permission_violations_total{operation="publish"} 2
lockstep_nats_permission_violations_total{operation="subscription"} 1
`), "lockstep_nats_permission_violations_total"))
}

func TestShutdownHandlesReceivedMessages(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	conn := connect(t, configFor(server.ClientURL()))
	healthy(t, conn)
	entered, release, handled := make(chan struct{}), make(chan struct{}), make(chan struct{})
	_, err := conn.Subscribe("work", func(*nats.Msg) {
		close(entered)
		<-release
		close(handled)
	})
	require.NoError(t, err)
	require.NoError(t, conn.Publish("work", nil))
	<-entered
	ended := make(chan error, 1)
	go func() { ended <- conn.Shutdown(context.Background()) }()
	require.Eventually(t, conn.IsDraining, timeout, time.Millisecond)
	close(release)
	<-handled
	require.NoError(t, <-ended)
	require.True(t, conn.IsClosed())
	require.NoError(t, conn.Shutdown(t.Context()), "a second call has no effect")
}

func TestShutdownEndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	conn := connect(t, configFor(server.ClientURL()))
	healthy(t, conn)
	entered, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	_, err := conn.Subscribe("work", func(*nats.Msg) {
		close(entered)
		<-release
	})
	require.NoError(t, err)
	require.NoError(t, conn.Publish("work", nil))
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, conn.Shutdown(ctx), context.Canceled)
	require.True(t, conn.IsClosed())
}

func TestPartReportsAnOutageAndEndsWithTheService(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	server.Down()
	cfg := configFor(server.ClientURL())
	conn := connect(t, cfg)
	listening, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ops := service.DefaultConfig("127.0.0.1:0")
	ops.OnListen = func(map[string]string) { close(listening) }
	ops.OnReady = func(map[string]string) { close(ready) }
	go func() {
		ended <- service.Run(ctx, service.Options{
			Name:    "test",
			Config:  ops,
			Logger:  silent(),
			Metrics: prometheus.NewRegistry(),
		}, conn.Part())
	}()
	<-listening
	select {
	case <-ready:
		t.Fatal("ready without NATS")
	default:
	}
	require.NoError(t, server.Restart())
	<-ready
	cancel()
	require.NoError(t, <-ended)
	require.True(t, conn.IsClosed())
}

func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	// A listener that never says anything, as a firewall does.
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	cfg := configFor("nats://" + listener.Addr().String())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := natsconn.Connect(ctx, cfg, silent())
		ended <- err
	}()
	dialed, err := listener.Accept()
	require.NoError(t, err)
	defer dialed.Close()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	_, err = natsconn.Connect(ctx, cfg, silent())
	require.ErrorIs(t, err, context.Canceled, "it does not connect")
}

func TestConnectRejectsInvalidConfig(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*natsconn.Config){
		"no URL":  func(c *natsconn.Config) { c.URL = "nats://%zz" },
		"no CA":   func(c *natsconn.Config) { c.TLS.CAFile = "/does/not/exist" },
		"no seed": func(c *natsconn.Config) { c.NKeySeedFile = config.SecretValue("SUnonsense") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := configFor("nats://127.0.0.1:1")
			change(&cfg)
			_, err := natsconn.Connect(t.Context(), cfg, silent())
			require.Error(t, err)
		})
	}
}
