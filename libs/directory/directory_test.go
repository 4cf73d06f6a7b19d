package directory_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const timeout = time.Minute

// fixture is a server with a stream, a writer and a directory copy.
type fixture struct {
	t        *testing.T
	server   *natsd.Server
	conn     *nats.Conn
	js       jetstream.JetStream
	revision int64
	copy     *directory.Directory
	ready    chan struct{}
}

func setup(t *testing.T) *fixture {
	t.Helper()
	b := &fixture{t: t, server: natstest.Server(t), ready: make(chan struct{})}
	b.conn = natstest.Connect(t, b.server)
	b.js = natstest.Open(t, b.conn)
	return b
}

func (f *fixture) makeStream() {
	f.t.Helper()
	require.NoError(f.t, topology.Ensure(natstest.Context(f.t), f.js, cell, topology.Options{StorageBytes: 100 << 20}))
}

// follow runs a copy with a connection of its own until the test ends.
func (f *fixture) follow() {
	f.t.Helper()
	f.followWith(natstest.Connect(f.t, f.server))
}

func (f *fixture) followWith(conn *nats.Conn) {
	f.t.Helper()
	var err error
	f.copy, err = directory.New(directory.Config{
		JetStream: natstest.Open(f.t, conn),
		Cell:      cell,
		Logger:    slog.New(slog.NewTextHandler(f.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Probe:     20 * time.Millisecond,
	})
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.copy.Run(ctx, func() { close(f.ready) })
	}()
	f.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func (f *fixture) awaitReady() {
	f.t.Helper()
	select {
	case <-f.ready:
	case <-time.After(timeout):
		require.Fail(f.t, "the copy does not become ready", "%v", f.copy.Check(f.t.Context()))
	}
}

// publish publishes entries with increasing revisions.
func (f *fixture) publish(entries ...entry) {
	f.t.Helper()
	for _, e := range entries {
		f.revision++
		f.publishRevision(f.revision, e)
	}
}

func (f *fixture) publishRevision(revision int64, e entry) {
	f.t.Helper()
	m := &nats.Msg{Subject: e.subject(), Data: e.payload(f.t), Header: nats.Header{
		topology.RevisionHeader: {
			strconv.FormatInt(revision, 10),
		},
		"ce-id": {e.subject() + "/" + strconv.FormatInt(revision, 10)},
	}}
	_, err := f.js.PublishMsg(f.t.Context(), m)
	require.NoError(f.t, err)
}

// until waits for a change after which it holds.
func (f *fixture) until(holds func() bool, why string) {
	f.t.Helper()
	deadline := time.After(timeout)
	for {
		changed := f.copy.Changed()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.Fail(f.t, why)
		}
	}
}

func (f *fixture) role() directory.Role { return f.copy.AgentRole(10, 7) }

func TestDirectoryIsReadyWhenCaughtUpAndFollowsChanges(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.makeStream()
	f.publish(append(tree(), member(10, directory.Group, 2, "reader"))...)
	for i := range 500 {
		f.publish(user(1000+i, events.UserStateActive))
	}
	f.follow()
	f.awaitReady()
	require.NoError(t, f.copy.Check(t.Context()))
	require.True(t, f.copy.Ready())
	require.Equal(t, directory.RoleReader, f.role())
	_, known := f.copy.User(1499)
	require.True(t, known, "ready means completely loaded")
	require.Equal(t, []int64{7}, f.copy.Agents(10, directory.RoleReader))
	require.Empty(t, f.copy.Agents(10, directory.RoleDeveloper))

	f.publish(member(10, directory.Project, 4, "maintainer"))
	f.until(func() bool { return f.role() == directory.RoleMaintainer }, "a new role does not arrive")
	f.publish(user(10, events.UserStateBlocked))
	f.until(func() bool { return f.role() == directory.RoleNone }, "a blocked user keeps the role")
	agent, known := f.copy.Agent(7)
	require.True(t, known)
	require.True(t, f.copy.Project(4))
	place, known := f.copy.Place(directory.Scope{Kind: directory.Project, ID: 4})
	require.True(t, known)
	require.Equal(t, directory.Place{Groups: []int64{3, 2}, Organization: 1}, place)
	require.False(t, f.copy.Project(7))
	require.False(t, agent.Revoked)
	f.publish(entry{"agent", "7", events.DirectoryAgent{AgentID: 7, ProjectID: 4, Revoked: true}})
	f.until(func() bool { agent, _ := f.copy.Agent(7); return agent.Revoked }, "a revocation does not arrive")
	made := time.Now().UTC().Truncate(time.Second)
	f.publish(entry{
		"key",
		"k1",
		events.DirectoryKey{
			KeyID: "k1", Algorithm: events.KeyAlgorithmEdDSA, PublicKey: "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
			NotBefore: made, NotAfter: made.Add(time.Hour),
		},
	})
	f.until(func() bool { _, known := f.copy.Key("k1"); return known }, "a key does not arrive")
	key, _ := f.copy.Key("k1")
	require.Equal(t, made, key.NotBefore)
	require.Len(t, key.Public, 32)
}

func TestDirectoryOfAnEmptyStreamIsReady(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.makeStream()
	b.follow()
	b.awaitReady()
	_, known := b.copy.User(10)
	require.False(t, known)
}

func TestDirectoryWaitsForStreamAndServer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.follow()
	require.Eventually(t, func() bool {
		err := b.copy.Check(context.Background())
		return err != nil &&
			err.Error() == "stream DIRECTORY is not loaded yet: it does not exist; the state service creates it"
	}, timeout, 5*time.Millisecond)
	require.False(t, b.copy.Ready())
	b.server.Down()
	require.NoError(t, b.server.Restart())
	natstest.Reconnected(t, b.conn)
	b.makeStream()
	b.publish(append(tree(), member(10, directory.Group, 2, "reader"))...)
	b.until(func() bool { return b.role() == directory.RoleReader }, "the copy does not find its stream")
	b.awaitReady()
}

func TestDirectoryContinuesAfterRestartsOfNATS(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.makeStream()
	b.publish(append(tree(), member(10, directory.Group, 2, "reader"))...)
	b.follow()
	b.awaitReady()
	for i, role := range []directory.Role{"developer", "maintainer", "owner"} {
		b.server.Down()
		require.NotEqual(t, directory.RoleNone, b.role(), "what is known stays known")
		require.NoError(t, b.copy.Check(t.Context()), "a short outage is no reason not to be ready")
		require.NoError(t, b.server.Restart())
		natstest.Reconnected(t, b.conn)
		b.publish(member(10, directory.Group, 2, role))
		b.until(func() bool { return b.role() == role }, "what is told after a restart does not arrive: "+strconv.Itoa(i))
	}
}

func TestRestoredStreamRemovesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.makeStream()
	b.publish(append(tree(), member(10, directory.Group, 2, "owner"))...)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, b.server.Snapshot(copied))
	natstest.Reconnected(t, b.conn)
	b.follow()
	b.awaitReady()
	b.publish(user(10, events.UserStateBlocked), user(11, events.UserStateActive), user(12, events.UserStateActive))
	b.until(
		func() bool { _, known := b.copy.User(12); return known && b.role() == directory.RoleNone },
		"the change does not arrive",
	)

	require.NoError(t, b.server.Restore(copied))
	natstest.Reconnected(t, b.conn)
	// The restored stream has the old user state and a lower last sequence. The next message reuses a sequence.
	b.publish(user(13, events.UserStateActive))
	b.until(func() bool { _, known := b.copy.User(13); return known }, "messages after a restore are not received")
	require.Equal(t, directory.RoleNone, b.role(), "a restored stream unblocks a user")
	_, known := b.copy.User(11)
	require.True(t, known)
	b.publish(user(10, events.UserStateActive))
	b.until(func() bool { return b.role() == directory.RoleOwner }, "republished entries are ignored")
}

func TestRecreatedStreamReplacesEverything(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.makeStream()
	b.publish(append(tree(), member(10, directory.Group, 2, "owner"), user(11, events.UserStateActive))...)
	b.follow()
	b.awaitReady()
	require.NoError(t, b.js.DeleteStream(t.Context(), topology.StreamDirectory))
	b.makeStream()
	// Another installation starts with revision 1.
	b.revision = 0
	b.publish(append(tree(), member(10, directory.Group, 2, "reader"))...)
	b.until(func() bool {
		_, known := b.copy.User(11)
		return !known && b.role() == directory.RoleReader
	}, "the copy keeps entries of the old stream")
	require.True(t, b.copy.Ready())
}

func TestDeploysPrincipalFollowsTheDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report, err := natsauth.Init(dir, natsauth.Options{})
	require.NoError(t, err)
	server := natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: t.TempDir()})
	as := func(name string) *nats.Conn {
		seed, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(dir, name))
		require.NoError(t, err)
		return natstest.Connect(t, server, seed, nats.CustomInboxPrefix(natsauth.InboxPrefix(name)))
	}
	b := &fixture{t: t, server: server, ready: make(chan struct{})}
	b.js = natstest.Open(t, as(natsauth.PrincipalState))
	b.makeStream()
	b.publish(append(tree(), member(10, directory.Group, 2, "reader"))...)
	denied := make(chan error, 100)
	conn := as(natsauth.PrincipalDeploys)
	conn.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err })
	b.followWith(conn)
	b.awaitReady()
	for _, role := range []directory.Role{"developer", "owner"} {
		require.NoError(t, server.Restart())
		natstest.Reconnected(t, b.js.Conn())
		b.publish(member(10, directory.Group, 2, role))
		b.until(func() bool { return b.role() == role }, "the copy does not follow")
	}
	for len(denied) > 0 {
		require.NotErrorIs(t, <-denied, nats.ErrPermissionViolation)
	}
}

func TestNewValidatesItsConfig(t *testing.T) {
	t.Parallel()
	b := setup(t)
	good := directory.Config{JetStream: b.js, Cell: cell, Logger: slog.New(slog.DiscardHandler)}
	_, err := directory.New(good)
	require.NoError(t, err)
	for name, spoil := range map[string]func(*directory.Config){
		"JetStream": func(c *directory.Config) { c.JetStream = nil },
		"logger":    func(c *directory.Config) { c.Logger = nil },
		"cell":      func(c *directory.Config) { c.Cell = "a.b" },
		"time":      func(c *directory.Config) { c.Probe = -1 },
	} {
		bad := good
		spoil(&bad)
		_, err := directory.New(bad)
		require.ErrorIs(t, err, directory.ErrInvalidConfig, name)
	}
}

func TestUserIsFoundByTheHashOfItsName(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.makeStream()
	f.publish(user(9, events.UserStateActive)) // of an older service, without a hash
	f.publish(entry{"user", "10", events.DirectoryUser{
		UserID: 10, State: events.UserStateActive, UsernameHash: directory.HashUsername("ada"),
	}})
	f.follow()
	f.awaitReady()
	found, known := f.copy.UserByName("ada")
	require.True(t, known)
	require.Equal(t, int64(10), found.ID)
	for _, name := range []string{"Ada", "eve", ""} {
		_, known = f.copy.UserByName(name)
		require.False(t, known, name)
	}
}
