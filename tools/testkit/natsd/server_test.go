package natsd_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func createStream(t *testing.T, server *natsd.Server) {
	t.Helper()
	js := natstest.JetStream(t, server)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FACTS", Subjects: []string{"fact.>"}})
	require.NoError(t, err)
}

func publish(t *testing.T, server *natsd.Server, text string) uint64 {
	t.Helper()
	ack, err := natstest.JetStream(t, server).Publish(t.Context(), "fact.one", []byte(text))
	require.NoError(t, err)
	return ack.Sequence
}

func lastSequence(t *testing.T, server *natsd.Server) uint64 {
	t.Helper()
	stream, err := natstest.JetStream(t, server).Stream(t.Context(), "FACTS")
	require.NoError(t, err)
	return stream.CachedInfo().State.LastSeq
}

func TestRestartKeepsStoreAndPort(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	createStream(t, server)
	publish(t, server, "a")
	before := server.ClientURL()
	server.Down()
	_, err := nats.Connect(server.ClientURL())
	require.ErrorIs(t, err, nats.ErrNoServers)
	require.NoError(t, server.Restart())
	require.Equal(t, before, server.ClientURL())
	require.Equal(t, uint64(1), lastSequence(t, server))
}

func TestRestoreReplacesTheStore(t *testing.T) {
	t.Parallel()
	server := natstest.Server(t)
	createStream(t, server)
	publish(t, server, "a")
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, server.Snapshot(copied))
	require.Equal(t, uint64(2), publish(t, server, "b"))
	require.NoError(t, server.Restore(copied))
	require.Equal(t, uint64(1), lastSequence(t, server), "b was stored after the copy")
	require.Equal(t, uint64(2), publish(t, server, "c"))
	require.NoError(t, server.Restore(copied), "a copy can be restored again")
	require.Equal(t, uint64(1), lastSequence(t, server))
}

func TestStopRemovesOnlyATemporaryStore(t *testing.T) {
	t.Parallel()
	server, err := natsd.Start(natsd.Options{})
	require.NoError(t, err)
	require.DirExists(t, server.StoreDir())
	require.NoError(t, server.Stop())
	require.NoError(t, server.Stop())
	require.NoDirExists(t, server.StoreDir())
	require.ErrorIs(t, server.Restart(), natsd.ErrStopped)

	kept := t.TempDir()
	server, err = natsd.Start(natsd.Options{StoreDir: kept})
	require.NoError(t, err)
	require.NoError(t, server.Stop())
	require.DirExists(t, kept)
}

func TestConfigurationFileAppliesExceptListenersAndStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := filepath.Join(dir, "nats-server.conf")
	require.NoError(t, os.WriteFile(config, []byte(`
listen: "0.0.0.0:4222"
http_port: 8222
pid_file: "`+filepath.Join(dir, "pid")+`"
jetstream { store_dir: "`+filepath.Join(dir, "elsewhere")+`" }
leafnodes { port: 7422 }
accounts {
  CONTROL { jetstream: enabled, users: [{user: control, password: secret}] }
  AGENTS  { users: [{user: agent, password: secret}] }
}
`), 0o600))
	server := natstest.Start(t, natsd.Options{ConfigFile: config})
	require.NotEqual(t, 4222, server.Port())
	require.NoFileExists(t, filepath.Join(dir, "pid"))
	require.NoDirExists(t, filepath.Join(dir, "elsewhere"))

	_, err := nats.Connect(server.ClientURL(), nats.Timeout(time.Minute))
	require.ErrorIs(t, err, nats.ErrAuthorization)
	_, err = natstest.JetStream(t, server, nats.UserInfo("control", "secret")).AccountInfo(t.Context())
	require.NoError(t, err)
	_, err = natstest.JetStream(t, server, nats.UserInfo("agent", "secret")).AccountInfo(t.Context())
	require.Error(t, err, "no JetStream in this account")
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	_, err := natsd.Start(natsd.Options{ConfigFile: filepath.Join(t.TempDir(), "missing.conf")})
	require.ErrorIs(t, err, os.ErrNotExist)

	var listen net.ListenConfig
	taken, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	_, err = natsd.Start(natsd.Options{Port: taken.Addr().(*net.TCPAddr).Port})
	require.ErrorContains(t, err, "address already in use")
}
