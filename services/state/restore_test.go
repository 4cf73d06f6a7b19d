package state_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// holds says whether a stream has a message on a subject, as an operator sees it.
func (b *bundle) holds(t *testing.T, stream, subject string) bool {
	t.Helper()
	option, err := nats.NkeyOptionFromSeed(natsauth.SeedFile(b.keys, natsauth.PrincipalOperator))
	require.NoError(t, err)
	conn, err := nats.Connect(b.nats.ClientURL(), option, nats.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalOperator)))
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	_, err = s.GetLastMsgForSubject(t.Context(), subject)
	if err != nil {
		require.ErrorIs(t, err, jetstream.ErrMsgNotFound)
		return false
	}
	return true
}

func TestARestoredNATSIsToldTheTruthAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stop := b.start(t)
	admin := b.as(t, b.admin)
	project, agent := admin.project()
	create := func(name string) (subject string) {
		w := call(t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: name, ProjectId: project}).GetWorkspace()
		return topology.Cell("local").Desired(agent.GetAgent().GetId(), w.GetId())
	}
	wanted := func(subject string) func() bool {
		return func() bool { return b.holds(t, topology.StreamDesired, subject) }
	}
	first := create("first")
	require.Eventually(t, wanted(first), time.Minute, 10*time.Millisecond)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, b.nats.Snapshot(copied))
	second := create("second")
	require.Eventually(t, wanted(second), time.Minute, 10*time.Millisecond)
	stop()
	require.NoError(t, b.nats.Restore(copied))
	require.False(t, wanted(second)(), "the copy does not know the second workspace")

	b.start(t)
	require.Eventually(t, wanted(second), time.Minute, 10*time.Millisecond)
	require.Eventually(t, wanted(first), time.Minute, 10*time.Millisecond)
	require.True(t, b.holds(t, topology.StreamDirectory, topology.Cell("local").Directory("user", "1")))
}
