package nats_test

import (
	"context"
	"encoding/json"
	"log/slog"
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
	"lockstep.internal/services/gateway/access"
	gatewaynats "lockstep.internal/services/gateway/nats"
	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/natsd"
	"lockstep.internal/tools/testkit/natstest"
)

const (
	cell    = topology.Cell("local")
	timeout = time.Minute

	owner    = 9
	first    = "0199c0de-7a31-7c55-b1d4-3f2a9e10c6aa"
	second   = "0199c0de-7a31-7c55-b1d4-3f2a9e10c6ab"
	portHTTP = 8080
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// system is a NATS as `lockstep nats init` configures it, with the streams that the state service makes.
type system struct {
	dir    string
	server *natsd.Server
	state  jetstream.JetStream
	table  *access.Table
	keys   *access.Keys
	// deleted is called with the id of each deleted workspace. Optional.
	deleted func(id string)
}

func newSystem(t *testing.T) *system {
	t.Helper()
	s := &system{dir: t.TempDir(), table: access.New(), keys: access.NewKeys(), deleted: func(string) {}}
	report, err := natsauth.Init(s.dir, natsauth.Options{Cell: cell, StoreDir: t.TempDir()})
	require.NoError(t, err)
	s.server = natstest.Start(t, natsd.Options{ConfigFile: report.ConfigFile})
	s.state = s.as(t, natsauth.PrincipalState)
	require.NoError(t, topology.Ensure(natstest.Context(t), s.state, cell, topology.Options{StorageBytes: 100 << 20}))
	s.person(t, owner, events.UserStateActive)
	return s
}

// as connects as a principal. A request that NATS refuses fails the test.
func (s *system) as(t *testing.T, name string) jetstream.JetStream {
	t.Helper()
	seed, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(s.dir, name))
	require.NoError(t, err)
	inbox := nats.CustomInboxPrefix(natsauth.InboxPrefix(name))
	failOnError := nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		t.Errorf("%s: %v", name, err)
	})
	return natstest.JetStream(t, s.server, seed, inbox, failOnError)
}

// run fills the table with the key of the gateway, and returns when it is complete.
func (s *system) run(t *testing.T) {
	t.Helper()
	js, logger := s.as(t, natsauth.PrincipalGateway), slog.New(slog.DiscardHandler)
	people, err := directory.New(directory.Config{JetStream: js, Cell: cell, Logger: logger})
	require.NoError(t, err)
	workspaces := gatewaynats.New(gatewaynats.Config{
		JetStream: js, Cell: cell, Table: s.table, Keys: s.keys, People: people, Logger: logger, Deleted: s.deleted,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 2)
	go func() {
		people.Run(ctx, func() {})
		ended <- nil
	}()
	await(t, people.WhenReady())
	go func() { ended <- workspaces.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	})
	await(t, ready)
	require.NoError(t, workspaces.Check(t.Context()))
}

func await(t *testing.T, signal <-chan struct{}) {
	t.Helper()
	select {
	case <-signal:
	case <-time.After(timeout):
		require.Fail(t, "nothing happened", "within %s", timeout)
	}
}

// publish stores a message with a revision, as the outbox of state does.
func (s *system) publish(t *testing.T, subject string, revision int, data any) {
	t.Helper()
	raw, err := json.Marshal(data)
	require.NoError(t, err)
	m := nats.NewMsg(subject)
	m.Data = raw
	m.Header.Set(topology.RevisionHeader, strconv.Itoa(revision))
	_, err = s.state.PublishMsg(natstest.Context(t), m)
	require.NoError(t, err)
}

func (s *system) person(t *testing.T, id int, state events.UserState) {
	t.Helper()
	s.publish(t, cell.Directory("user", strconv.Itoa(id)), int(time.Now().UnixNano()),
		events.DirectoryUser{UserID: id, State: state})
}

func running(id, name string) events.AccessWorkspace {
	return events.AccessWorkspace{
		WorkspaceID: id, Name: name, Namespace: "ws-7-" + name, ProjectID: 4, AgentID: 7, UserID: owner,
		ActualState: events.ActualStateRunning,
	}
}

func (s *system) workspace(t *testing.T, revision int, w events.AccessWorkspace) {
	t.Helper()
	s.publish(t, cell.AccessWorkspace(w.WorkspaceID), revision, w)
}

// enters waits until the owner may enter.
func (s *system) enters(t *testing.T, name string) *access.Grant {
	t.Helper()
	var grant *access.Grant
	require.Eventually(t, func() bool {
		var err error
		grant, err = s.table.Enter(owner, name, portHTTP)
		return err == nil
	}, timeout, time.Millisecond)
	return grant
}

func (s *system) isRefused(t *testing.T, name string, want error) {
	t.Helper()
	require.Eventually(t, func() bool {
		grant, err := s.table.Enter(owner, name, portHTTP)
		if err == nil {
			grant.Close()
		}
		return err != nil && want.Error() == err.Error()
	}, timeout, time.Millisecond)
}

func TestStoredWorkspacesCanBeEnteredOnceTheTableIsReady(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.workspace(t, 1, running(first, "hello"))
	stopped := running(second, "stopped")
	stopped.ActualState = events.ActualStateStopped
	s.workspace(t, 2, stopped)
	s.run(t)
	grant, err := s.table.Enter(owner, "hello", portHTTP)
	require.NoError(t, err)
	require.Equal(t, access.Entry{
		ID: first, Name: "hello", Namespace: "ws-7-hello", AgentID: 7, OwnerID: owner, Running: true, State: "running",
	}, grant.Entry)
	_, err = s.table.Enter(owner+1, "hello", portHTTP)
	require.ErrorIs(t, err, access.ErrUnknown)
	_, err = s.table.Enter(owner, "stopped", portHTTP)
	require.ErrorIs(t, err, access.ErrNotRunning)
}

func TestGrantsEndWhenTheStreamsSaySo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(s *system, t *testing.T)
		want   error
	}{
		"it stops": {func(s *system, t *testing.T) {
			t.Helper()
			w := running(first, "hello")
			w.ActualState = events.ActualStateStopping
			s.workspace(t, 2, w)
		}, access.ErrStopped},
		"it is deleted": {func(s *system, t *testing.T) {
			t.Helper()
			w := running(first, "hello")
			w.ActualState, w.Deleted = events.ActualStateTerminated, true
			s.workspace(t, 2, w)
		}, access.ErrStopped},
		"it has another owner": {func(s *system, t *testing.T) {
			t.Helper()
			w := running(first, "hello")
			w.UserID = owner + 1
			s.workspace(t, 2, w)
		}, access.ErrRevoked},
		"the person is blocked": {func(s *system, t *testing.T) {
			t.Helper()
			s.person(t, owner, events.UserStateBlocked)
		}, access.ErrRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			s.run(t)
			s.workspace(t, 1, running(first, "hello"))
			grant := s.enters(t, "hello")
			test.change(s, t)
			await(t, grant.Context().Done())
			require.ErrorIs(t, context.Cause(grant.Context()), test.want)
		})
	}
}

func TestPeopleWhoAreNotInTheDirectoryEnterNothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.run(t)
	w := running(first, "hello")
	w.UserID = owner + 1
	s.workspace(t, 1, w)
	s.workspace(t, 2, running(second, "later"))
	s.enters(t, "later").Close()
	_, err := s.table.Enter(owner+1, "hello", portHTTP)
	require.ErrorIs(t, err, access.ErrUnknown)
	s.person(t, owner+1, events.UserStateActive)
	require.Eventually(t, func() bool {
		_, err := s.table.Enter(owner+1, "hello", portHTTP)
		return err == nil
	}, timeout, time.Millisecond)
}

func TestOlderAndMalformedMessagesChangeNothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.run(t)
	s.workspace(t, 5, running(first, "hello"))
	s.enters(t, "hello").Close()
	old := running(first, "hello")
	old.ActualState = events.ActualStateStopped
	s.workspace(t, 4, old)
	s.publish(t, cell.AccessWorkspace(first), 6, "no event")
	s.publish(t, cell.AccessWorkspace(first), 6, running(second, "other"))
	s.workspace(t, 7, running(second, "last"))
	s.enters(t, "last").Close()
	s.enters(t, "hello").Close()
	s.isRefused(t, "other", access.ErrUnknown)
}
