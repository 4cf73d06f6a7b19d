package state_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
)

// agent registers another agent in the project.
func (a as) agent(project int64, name string) *statev1.RegisterAgentResponse {
	a.t.Helper()
	key, err := seal.GenerateKey()
	require.NoError(a.t, err)
	return call(a.t, a.agents.RegisterAgent,
		&statev1.RegisterAgentRequest{Name: name, ProjectId: project, CurvePublicKey: key.Public()})
}

// dialAgent connects as an agent that does not reconnect.
func dialAgent(t *testing.T, registered *statev1.RegisterAgentResponse) (*nats.Conn, error) {
	t.Helper()
	user := strconv.FormatInt(registered.GetAgent().GetId(), 10)
	conn, err := nats.Connect(registered.GetNatsUrls()[0], nats.UserInfo(user, registered.GetToken()),
		nats.CustomInboxPrefix(natsauth.InboxPrefix(user)), nats.MaxReconnects(0), nats.Timeout(timeout))
	if err == nil {
		t.Cleanup(conn.Close)
	}
	return conn, err
}

// stored returns how many messages of an agent OBSERVED holds.
func (b *fixture) stored(t *testing.T, agent int64) int {
	t.Helper()
	js, err := jetstream.New(b.administrator(t))
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), topology.StreamObserved)
	require.NoError(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(topology.Cell("local").ObservedAgent(agent)))
	require.NoError(t, err)
	messages := 0
	for _, count := range info.State.Subjects {
		messages += int(count)
	}
	return messages
}

func TestAgentThatExceedsItsLimitsIsBlockedBeforeItDisplacesOthers(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.cfg.Streams.Storage = config.GiB // OBSERVED has 32 % of it
	b.cfg.Agents.HourlyBytes = 8 * config.MiB
	b.start(t)
	admin := b.as(t, b.admin)
	project, broken := admin.project()
	honest := admin.agent(project, "honest")
	cell, brokenID, honestID := topology.Cell("local"), broken.GetAgent().GetId(), honest.GetAgent().GetId()

	const messages = 100
	other, err := dialAgent(t, honest)
	require.NoError(t, err)
	for n := range messages {
		require.NoError(t, other.Publish(cell.ObservedWorkload(honestID, "deployment", "shop", strconv.Itoa(n)), nil))
	}
	require.NoError(t, other.Flush())

	published, err := b.administrator(t).SubscribeSync(cell.AgentBlocked(brokenID))
	require.NoError(t, err)
	require.NoError(t, b.administrator(t).Flush())
	flooding, err := dialAgent(t, broken)
	require.NoError(t, err)
	data, began := make([]byte, 16<<10), time.Now()
	for n := 0; err == nil && time.Since(began) < timeout; n++ {
		err = flooding.Publish(cell.ObservedWorkload(brokenID, "deployment", "shop", strconv.Itoa(n%100)), data)
	}
	require.Error(t, err, "the agent is disconnected")
	t.Logf("stored %d KiB of the agent in %s", 16*b.stored(t, brokenID), time.Since(began))
	require.Equal(t, messages, b.stored(t, honestID), "the history of another agent is complete")
	require.True(t, other.IsConnected())

	_, refused := dialAgent(t, broken)
	block := call(t, admin.agents.GetAgent, &statev1.GetAgentRequest{Id: brokenID}).GetAgent().GetBlock()
	list := call(t, admin.agents.ListAgents, &statev1.ListAgentsRequest{}).GetAgents()
	message, err := published.NextMsg(timeout)
	require.NoError(t, err)
	blocked, err := events.Decode[events.AgentBlocked](message.Data)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("published more than %d bytes within an hour, the limit of agents.hourly_bytes", 8<<20),
		blocked.Reason)
	require.WithinDuration(t, blocked.BlockedAt.Truncate(time.Hour).Add(time.Hour), blocked.BlockedUntil, 0)
	if time.Now().After(blocked.BlockedUntil) {
		return // the hour ended during the test
	}
	require.ErrorIs(t, refused, nats.ErrAuthorization)
	require.Equal(t, blocked.Reason, block.GetReason())
	require.WithinDuration(t, blocked.BlockedUntil, block.GetBlockedUntil().AsTime(), 0)
	for _, listed := range list {
		require.Equal(t, listed.GetId() == brokenID, listed.GetBlock() != nil)
	}
}

// TestAgentFillsNoMoreThanItsShareOfAStream has an agent that is within its hourly limits, which are larger than the
// stream.
func TestAgentFillsNoMoreThanItsShareOfAStream(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.cfg.Streams.Storage, b.cfg.Agents.DailyShare = config.GiB, 10 // of 369 MiB
	stop := b.start(t)
	admin := b.as(t, b.admin)
	project, broken := admin.project()
	honest := admin.agent(project, "honest")
	cell, brokenID, honestID := topology.Cell("local"), broken.GetAgent().GetId(), honest.GetAgent().GetId()
	other, err := dialAgent(t, honest)
	require.NoError(t, err)
	require.NoError(t, other.Publish(cell.ObservedTick(honestID), nil))
	require.NoError(t, other.Flush())

	flooding, err := dialAgent(t, broken)
	require.NoError(t, err)
	data, began := make([]byte, 16<<10), time.Now()
	for err == nil && time.Since(began) < timeout {
		for range 64 {
			_ = flooding.Publish(cell.ObservedTick(brokenID), data)
		}
		err = flooding.FlushTimeout(timeout)
	}
	require.Error(t, err, "the agent is disconnected")
	t.Logf("stored %d MiB of the agent in %s", b.stored(t, brokenID)/64, time.Since(began))
	require.Equal(t, 1, b.stored(t, honestID), "the oldest message of another agent is still there")
	block := call(t, admin.agents.GetAgent, &statev1.GetAgentRequest{Id: brokenID}).GetAgent().GetBlock()
	require.Contains(t, block.GetReason(), "bytes on OBSERVED within 24 hours")
	require.WithinDuration(t, began.Truncate(time.Hour).Add(25*time.Hour), block.GetBlockedUntil().AsTime(), time.Hour)

	// A restart reads the day again: the agent stays blocked, unless the limits now permit what it has published.
	stop()
	stop = b.start(t)
	_, err = dialAgent(t, broken)
	require.ErrorIs(t, err, nats.ErrAuthorization)
	stop()
	b.cfg.Agents.DailyShare = 100
	b.start(t)
	require.Eventually(t, func() bool {
		_, err := dialAgent(t, broken)
		return err == nil
	}, timeout, 50*time.Millisecond, "it is within the new limit")
}

func TestLimitsOfAgentsPermitAFullResyncOfTheLargestAgent(t *testing.T) {
	t.Parallel()
	b := newFixture(t)
	b.cfg.Agents.HourlyMessages, b.cfg.Agents.HourlyBytes, b.cfg.Agents.DailySubjects = 349_999, config.MiB, 1
	require.Len(t, b.cfg.Validate(), 3)
	b.cfg.Agents.DailyShare = 101
	require.Len(t, b.cfg.Validate(), 4)
}
