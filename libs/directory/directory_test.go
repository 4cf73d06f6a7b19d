package directory_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
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

const patience = time.Minute

// bundle is a server with a stream, who writes to it, and a copy.
type bundle struct {
	t        *testing.T
	server   *natsd.Server
	conn     *nats.Conn
	js       jetstream.JetStream
	revision int64
	copy     *directory.Directory
	ready    chan struct{}
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, server: natstest.Server(t), ready: make(chan struct{})}
	b.conn = natstest.Connect(t, b.server)
	b.js = natstest.Open(t, b.conn)
	return b
}

func (b *bundle) makeStream() {
	b.t.Helper()
	require.NoError(b.t, topology.Ensure(natstest.Context(b.t), b.js, cell, topology.Options{StorageBytes: 100 << 20}))
}

// follow runs a copy with a connection of its own until the test ends.
func (b *bundle) follow() {
	b.t.Helper()
	b.followWith(natstest.Connect(b.t, b.server))
}

func (b *bundle) followWith(conn *nats.Conn) {
	b.t.Helper()
	var err error
	b.copy, err = directory.New(directory.Config{
		Conn:   conn,
		Cell:   cell,
		Logger: slog.New(slog.NewTextHandler(b.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Probe:  20 * time.Millisecond,
	})
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.copy.Run(ctx, func() { close(b.ready) }) }()
	b.t.Cleanup(func() {
		cancel()
		require.NoError(b.t, <-ended)
	})
}

func (b *bundle) awaitReady() {
	b.t.Helper()
	select {
	case <-b.ready:
	case <-time.After(patience):
		require.Fail(b.t, "the copy does not become ready", "%v", b.copy.Check(b.t.Context()))
	}
}

// tell publishes entries with growing revisions.
func (b *bundle) tell(entries ...entry) {
	b.t.Helper()
	for _, e := range entries {
		b.revision++
		b.tellAs(b.revision, e)
	}
}

func (b *bundle) tellAs(revision int64, e entry) {
	b.t.Helper()
	m := &nats.Msg{Subject: e.subject(), Data: e.payload(b.t), Header: nats.Header{
		topology.RevisionHeader: {
			strconv.FormatInt(revision, 10),
		},
		"ce-id": {e.subject() + "/" + strconv.FormatInt(revision, 10)},
	}}
	_, err := b.js.PublishMsg(b.t.Context(), m)
	require.NoError(b.t, err)
}

// until waits for a change after which it holds.
func (b *bundle) until(holds func() bool, why string) {
	b.t.Helper()
	deadline := time.After(patience)
	for {
		changed := b.copy.Changed()
		if holds() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			require.Fail(b.t, why)
		}
	}
}

func (b *bundle) role() directory.Role { return b.copy.AgentRole(10, 7) }

func TestDirectoryIsReadyWhenCaughtUpAndFollowsChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.makeStream()
	b.tell(append(tree(), member(10, directory.Group, 2, "reader"))...)
	for i := range 500 {
		b.tell(user(1000+i, events.UserStateActive))
	}
	b.follow()
	b.awaitReady()
	require.NoError(t, b.copy.Check(t.Context()))
	require.True(t, b.copy.Ready())
	require.Equal(t, directory.RoleReader, b.role())
	_, known := b.copy.User(1499)
	require.True(t, known, "ready means whole")
	require.Equal(t, []int64{7}, b.copy.Agents(10, directory.RoleReader))
	require.Empty(t, b.copy.Agents(10, directory.RoleDeveloper))

	b.tell(member(10, directory.Project, 4, "maintainer"))
	b.until(func() bool { return b.role() == directory.RoleMaintainer }, "a new role does not arrive")
	b.tell(user(10, events.UserStateBlocked))
	b.until(func() bool { return b.role() == directory.RoleNone }, "a blocked user keeps the role")
	agent, known := b.copy.Agent(7)
	require.True(t, known)
	require.True(t, b.copy.Project(4))
	require.False(t, b.copy.Project(7))
	require.False(t, agent.Revoked)
	b.tell(entry{"agent", "7", events.DirectoryAgent{AgentID: 7, ProjectID: 4, Revoked: true}})
	b.until(func() bool { agent, _ := b.copy.Agent(7); return agent.Revoked }, "a revocation does not arrive")
	made := time.Now().UTC().Truncate(time.Second)
	b.tell(entry{
		"key",
		"k1",
		events.DirectoryKey{
			KeyID: "k1", Algorithm: events.KeyAlgorithmEdDSA, PublicKey: "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
			NotBefore: made, NotAfter: made.Add(time.Hour),
		},
	})
	b.until(func() bool { _, known := b.copy.Key("k1"); return known }, "a key does not arrive")
	key, _ := b.copy.Key("k1")
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
			err.Error() == "the directory is not read yet: stream DIRECTORY is not there: the service state makes it"
	}, patience, 5*time.Millisecond)
	require.False(t, b.copy.Ready())
	b.server.Down()
	require.NoError(t, b.server.Restart())
	natstest.Reconnected(t, b.conn)
	b.makeStream()
	b.tell(append(tree(), member(10, directory.Group, 2, "reader"))...)
	b.until(func() bool { return b.role() == directory.RoleReader }, "the copy does not find its stream")
	b.awaitReady()
}

func TestDirectoryContinuesAfterRestartsOfNATS(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.makeStream()
	b.tell(append(tree(), member(10, directory.Group, 2, "reader"))...)
	b.follow()
	b.awaitReady()
	for i, role := range []directory.Role{"developer", "maintainer", "owner"} {
		b.server.Down()
		require.NotEqual(t, directory.RoleNone, b.role(), "what is known stays known")
		require.NoError(t, b.copy.Check(t.Context()), "a short outage is no reason not to be ready")
		require.NoError(t, b.server.Restart())
		natstest.Reconnected(t, b.conn)
		b.tell(member(10, directory.Group, 2, role))
		b.until(func() bool { return b.role() == role }, "what is told after a restart does not arrive: "+strconv.Itoa(i))
	}
}

func TestRestoredStreamRemovesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.makeStream()
	b.tell(append(tree(), member(10, directory.Group, 2, "owner"))...)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, b.server.Snapshot(copied))
	natstest.Reconnected(t, b.conn)
	b.follow()
	b.awaitReady()
	b.tell(user(10, events.UserStateBlocked), user(11, events.UserStateActive), user(12, events.UserStateActive))
	b.until(
		func() bool { _, known := b.copy.User(12); return known && b.role() == directory.RoleNone },
		"the change does not arrive",
	)

	require.NoError(t, b.server.Restore(copied))
	natstest.Reconnected(t, b.conn)
	// The restored stream calls the user active, and ends before what was read. The next message
	// has a sequence that was another's.
	b.tell(user(13, events.UserStateActive))
	b.until(func() bool { _, known := b.copy.User(13); return known }, "what is told after a restoration does not arrive")
	require.Equal(t, directory.RoleNone, b.role(), "an older copy of the stream lets a blocked user in again")
	_, known := b.copy.User(11)
	require.True(t, known)
	b.tell(user(10, events.UserStateActive))
	b.until(func() bool { return b.role() == directory.RoleOwner }, "what is told again does not count")
}

func TestRecreatedStreamReplacesEverything(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.makeStream()
	b.tell(append(tree(), member(10, directory.Group, 2, "owner"), user(11, events.UserStateActive))...)
	b.follow()
	b.awaitReady()
	require.NoError(t, b.js.DeleteStream(t.Context(), topology.StreamDirectory))
	b.makeStream()
	// Another installation counts from the start.
	b.revision = 0
	b.tell(append(tree(), member(10, directory.Group, 2, "reader"))...)
	b.until(func() bool {
		_, known := b.copy.User(11)
		return !known && b.role() == directory.RoleReader
	}, "the copy keeps what the stream before told")
	require.True(t, b.copy.Ready())
}

// TestDirectoryReaderSubjectsSuffice runs a copy as a service that may do nothing else.
func TestDirectoryReaderSubjectsSuffice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	report, err := natsauth.Init(dir, natsauth.Options{Principals: []natsauth.StaticPrincipal{{
		Name: "billing", Account: natsauth.AccountControl, Permissions: jwt.Permissions{
			Pub: jwt.Permission{
				Allow: natsauth.DirectoryReaderSubjects(),
			},
			Sub: jwt.Permission{Allow: jwt.StringList{natsauth.InboxPrefix("billing") + ".>"}},
		},
	}}})
	require.NoError(t, err)
	server := natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile, StoreDir: t.TempDir()})
	as := func(name string) *nats.Conn {
		seed, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(dir, name))
		require.NoError(t, err)
		return natstest.Connect(t, server, seed, nats.CustomInboxPrefix(natsauth.InboxPrefix(name)))
	}
	b := &bundle{t: t, server: server, ready: make(chan struct{})}
	b.js = natstest.Open(t, as(natsauth.PrincipalState))
	b.makeStream()
	b.tell(append(tree(), member(10, directory.Group, 2, "reader"))...)
	denied := make(chan error, 100)
	conn := as("billing")
	conn.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err })
	b.followWith(conn)
	b.awaitReady()
	for _, role := range []directory.Role{"developer", "owner"} {
		require.NoError(t, server.Restart())
		natstest.Reconnected(t, b.js.Conn())
		b.tell(member(10, directory.Group, 2, role))
		b.until(func() bool { return b.role() == role }, "the copy does not follow")
	}
	for len(denied) > 0 {
		require.NotErrorIs(t, <-denied, nats.ErrPermissionViolation)
	}
}

func TestNewValidatesItsConfig(t *testing.T) {
	t.Parallel()
	b := setup(t)
	good := directory.Config{Conn: b.conn, Cell: cell, Logger: slog.New(slog.DiscardHandler)}
	_, err := directory.New(good)
	require.NoError(t, err)
	for name, spoil := range map[string]func(*directory.Config){
		"connection": func(c *directory.Config) { c.Conn = nil },
		"logger":     func(c *directory.Config) { c.Logger = nil },
		"cell":       func(c *directory.Config) { c.Cell = "a.b" },
		"time":       func(c *directory.Config) { c.Probe = -1 },
	} {
		bad := good
		spoil(&bad)
		_, err := directory.New(bad)
		require.ErrorIs(t, err, directory.ErrInvalidConfig, name)
	}
}
