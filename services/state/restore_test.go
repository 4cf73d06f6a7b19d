package state_test

import (
	"context"
	"encoding/hex"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/testkit/natstest"
)

// holds reports whether a stream has a message on a subject.
func (b *fixture) holds(t *testing.T, stream, subject string) bool {
	t.Helper()
	return b.last(t, stream, subject) != ""
}

// last is the last message on a subject; empty when there is none.
func (b *fixture) last(t *testing.T, stream, subject string) string {
	t.Helper()
	js := natstest.Open(t, b.administrator(t))
	s, err := js.Stream(t.Context(), stream)
	require.NoError(t, err)
	msg, err := s.GetLastMsgForSubject(t.Context(), subject)
	if err != nil {
		require.ErrorIs(t, err, jetstream.ErrMsgNotFound)
		return ""
	}
	return string(msg.Data)
}

// awaitAcknowledged waits until NATS has acknowledged everything that the service has published. A restore can only
// lose acknowledged messages.
func (b *fixture) awaitAcknowledged(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.cfg.Database.URL.Reveal())
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	require.Eventually(t, func() bool {
		var waiting int
		require.NoError(t, conn.QueryRow(t.Context(), `select count(*) from state.outbox`).Scan(&waiting))
		return waiting == 0
	}, time.Minute, 10*time.Millisecond)
}

func TestRestoredNATSGetsEverythingPublishedAgain(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	stop := b.start(t)
	admin := b.as(t, b.admin)
	project, agent := admin.project()
	entered := map[string]string{} // the subject on ACCESS of the workspace, by its subject on DESIRED
	create := func(name string) (subject string) {
		w := call(
			t,
			admin.workspaces.CreateWorkspace,
			&statev1.CreateWorkspaceRequest{Name: name, ProjectId: project},
		).GetWorkspace()
		subject = topology.Cell("local").Desired(agent.GetAgent().GetId(), w.GetId())
		entered[subject] = topology.Cell("local").AccessWorkspace(w.GetId())
		return subject
	}
	wanted := func(subject string) func() bool {
		return func() bool {
			return b.holds(t, topology.StreamDesired, subject) && b.holds(t, topology.StreamAccess, entered[subject])
		}
	}
	first := create("first")
	require.Eventually(t, wanted(first), time.Minute, 10*time.Millisecond)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, b.nats.Snapshot(copied))
	second := create("second")
	require.Eventually(t, wanted(second), time.Minute, 10*time.Millisecond)
	call(t, admin.agents.ConfigureAgent, &statev1.ConfigureAgentRequest{
		Id: agent.GetAgent().
			GetId(),
		Configuration: &statev1.AgentConfiguration{FullResyncInterval: durationpb.New(time.Minute)},
	})
	configured := func() bool {
		control := topology.Cell("local").ControlConfig(agent.GetAgent().GetId())
		return strings.Contains(b.last(t, topology.StreamControl, control), `"full_resync_interval_ms":60000`)
	}
	require.Eventually(t, configured, time.Minute, 10*time.Millisecond)
	b.awaitAcknowledged(t)
	stop()
	require.NoError(t, b.nats.Restore(copied))
	require.False(t, wanted(second)(), "the backup does not contain the second workspace")
	require.False(t, configured(), "nor the agent's configuration")

	b.start(t)
	require.Eventually(t, wanted(second), time.Minute, 10*time.Millisecond)
	require.Eventually(t, wanted(first), time.Minute, 10*time.Millisecond)
	require.Eventually(t, configured, time.Minute, 10*time.Millisecond)
	require.True(t, b.holds(t, topology.StreamDirectory, topology.Cell("local").Directory("user", "1")))
}

// An earlier version has created the workspaces and published nothing to ACCESS.
func TestUpgradedServicePublishesWhoMayEnter(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	stop := b.start(t)
	admin := b.as(t, b.admin)
	project, _ := admin.project()
	w := call(
		t, admin.workspaces.CreateWorkspace, &statev1.CreateWorkspaceRequest{Name: "first", ProjectId: project},
	).GetWorkspace()
	subject := topology.Cell("local").AccessWorkspace(w.GetId())
	published := func() bool { return b.holds(t, topology.StreamAccess, subject) }
	require.Eventually(t, published, time.Minute, 10*time.Millisecond)
	b.awaitAcknowledged(t)
	stop()
	conn, err := pgx.Connect(t.Context(), b.cfg.Database.URL.Reveal())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `delete from state.outbox_streams where stream = 'ACCESS'`)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	require.NoError(t, natstest.Open(t, b.administrator(t)).DeleteStream(t.Context(), topology.StreamAccess))

	b.start(t)
	require.Eventually(t, published, time.Minute, 10*time.Millisecond)
	require.Contains(t, b.last(t, topology.StreamAccess, subject), `"name":"first"`)
}

func TestUpgradedServicePublishesTokenHashesAndNames(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	stop := b.start(t)
	_, agent := b.as(t, b.admin).project()
	id := agent.GetAgent().GetId()
	published := func(token string) func() bool {
		hash, err := natsauth.HashToken(natsauth.TokenAgent, token)
		require.NoError(t, err)
		return func() bool {
			entry := b.last(t, topology.StreamDirectory, topology.Cell("local").Directory("agent", strconv.FormatInt(id, 10)))
			return strings.Contains(entry, `"token_hash":"`+hex.EncodeToString(hash[:])+`"`) &&
				strings.Contains(entry, `"name":"acme"`)
		}
	}
	require.Eventually(t, published(agent.GetToken()), time.Minute, 10*time.Millisecond)
	stop()
	// An earlier version registered the agent and did not publish the hash or the name.
	token := natsauth.NewToken(natsauth.TokenAgent)
	hash, err := natsauth.HashToken(natsauth.TokenAgent, token)
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), b.cfg.Database.URL.Reveal())
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), `update state.agents set token_hash = $2, entry_form = 1 where id = $1`, id, hash[:])
	require.NoError(t, err)
	require.False(t, published(token)())
	b.start(t)
	require.Eventually(t, published(token), time.Minute, 10*time.Millisecond)
}

// hasConsumer reports whether the consumer of an agent's dispatcher exists.
func (b *fixture) hasConsumer(t *testing.T, agent int64) bool {
	t.Helper()
	js := natstest.Open(t, b.administrator(t))
	_, err := js.Consumer(t.Context(), topology.StreamDesired, topology.DispatcherConsumer(agent))
	if err != nil {
		require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
		return false
	}
	return true
}

func TestAgentMissingInRestoredNATSConnectsAgain(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NoError(t, b.nats.Snapshot(copied))
	_, agent := b.as(t, b.admin).project()
	id := agent.GetAgent().GetId()
	consumes := func() bool { return b.hasConsumer(t, id) }
	require.Eventually(
		t,
		consumes,
		time.Minute,
		10*time.Millisecond,
		"NATS may have been away when the agent was registered",
	)
	b.awaitAcknowledged(t)
	require.NoError(t, b.nats.Restore(copied))
	require.Eventually(t, consumes, time.Minute, 10*time.Millisecond)
}

func TestAgentRegisteredWithoutNATSConnectsLater(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.start(t)
	b.nats.Down()
	_, agent := b.as(t, b.admin).project()
	require.NoError(t, b.nats.Restart())
	exists := func() bool { return b.hasConsumer(t, agent.GetAgent().GetId()) }
	require.Eventually(t, exists, time.Minute, 10*time.Millisecond)
}
