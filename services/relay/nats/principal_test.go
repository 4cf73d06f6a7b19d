package nats_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	relaynats "lockstep.internal/services/relay/nats"
)

func TestRelayPrincipalCanMaintainRegistry(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	a, b := s.run(t, "a"), s.run(t, "b")
	a.Connected(connection(7, 1))
	a.Connected(connection(8, 2))
	b.requireConnections(t, 7, 1)
	b.requireConnections(t, 8, 2)
	a.Disconnected(connection(7, 1), time.Now(), "")
	b.requireConnections(t, 7)
	a.stop()
	b.requireConnections(t, 8)
	require.Eventually(t, func() bool {
		return len(b.registry.Orphans()) == 0
	}, timeout, 10*time.Millisecond, "a graceful stop removes all entries")
	kv, err := b.js.KeyValue(t.Context(), "RELAYS")
	require.NoError(t, err)
	_, err = kv.Get(t.Context(), "relay.b")
	require.NoError(t, err)
}

// The initial read uses flow control, which the relay's principal must be able to answer.
func TestRelayPrincipalReadsLargeBucket(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.run(t, "a")
	js := s.as(t, natsauth.PrincipalRelay)
	const connections = 2000
	padding := strings.Repeat("x", 3000)
	for i := range connections {
		_, err := js.PublishAsync(fmt.Sprintf("$KV.RELAYS.connection.7.%d", i+1),
			fmt.Appendf(nil, `{"relay_id":"a","project_id":3,"pod_name":%q}`, padding))
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(timeout):
		require.Fail(t, "not all entries were written")
	}
	late := s.run(t, "late")
	require.Len(t, late.registry.Agent(7), connections)
}

func TestRelayPrincipalReadsDirectoryAndPublishesAgentEvents(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	js := s.control(t)
	for subject, data := range map[string]string{
		cell.Directory("agent", "7"): `{"agent_id":7,"project_id":3}`, cell.ControlConfig(7): `{"config_revision":1}`,
	} {
		_, err := s.state.Publish(t.Context(), subject, []byte(data))
		require.NoError(t, err)
	}
	d, err := directory.New(directory.Config{
		JetStream: js, Cell: cell, Logger: slog.New(slog.DiscardHandler), Probe: 10 * time.Millisecond,
	})
	require.NoError(t, err)
	untilReady(t, d.Run)
	agent, found := d.Agent(7)
	require.True(t, found)
	require.Equal(t, int64(3), agent.ProjectID)

	for subject, stream := range map[string]string{
		cell.AgentConnected(7): topology.StreamAgents, cell.AgentDisconnected(7): topology.StreamAgents,
		cell.AuditRequests(7): topology.StreamAudit,
	} {
		ack, err := js.Publish(t.Context(), subject, nil)
		require.NoError(t, err)
		require.Equal(t, stream, ack.Stream)
	}
}

func TestRelayPrincipalFollowsTheConfigurationsOfAgents(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	publish := func(revision int) {
		t.Helper()
		m := natsgo.NewMsg(cell.ControlConfig(7))
		m.Header.Set(topology.RevisionHeader, strconv.Itoa(revision))
		m.Data = fmt.Appendf(nil, `{"config_revision":%d}`, revision)
		_, err := s.state.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	publish(5)
	configs := relaynats.NewAgentConfigs(s.control(t), cell, slog.New(slog.DiscardHandler))
	untilReady(t, configs.Run)
	require.NoError(t, configs.Check(t.Context()))
	line, changed := configs.AgentConfig(7)
	require.Contains(t, string(line), `"config_revision":5`)

	publish(4) // as after a restore of the stream
	publish(6)
	<-changed
	line, _ = configs.AgentConfig(7)
	require.Contains(t, string(line), `"config_revision":6`)
}

// untilReady runs a copy until the test ends, and returns when it is ready.
func untilReady(t *testing.T, run func(ctx context.Context, ready func())) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx, func() { close(ready) })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	select {
	case <-ready:
	case <-time.After(timeout):
		require.Fail(t, "the stream was not read", "within %s", timeout)
	}
}

// Neither the relay nor state can delete, purge or replace audit records, and the stream cannot be unsealed.
func TestAuditRecordsCannotBeRemoved(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	js := s.as(t, natsauth.PrincipalRelay)
	_, err := js.Publish(t.Context(), cell.AuditRequests(7), []byte("kept"))
	require.NoError(t, err)
	for header, value := range map[string]string{
		"Nats-Rollup": "all", "Nats-TTL": "1s",
	} {
		_, err := js.PublishMsg(t.Context(), &natsgo.Msg{
			Subject: cell.AuditRequests(7), Data: []byte("later"), Header: natsgo.Header{header: {value}},
		})
		require.Error(t, err, header)
	}
	// The administrator of JetStream stands for whoever may ask for it.
	stream, err := s.state.Stream(t.Context(), topology.StreamAudit)
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	require.True(t, cfg.DenyDelete && cfg.DenyPurge)
	for name, unseal := range map[string]func(*jetstream.StreamConfig){
		"delete": func(c *jetstream.StreamConfig) { c.DenyDelete = false },
		"purge":  func(c *jetstream.StreamConfig) { c.DenyPurge = false },
	} {
		changed := cfg
		unseal(&changed)
		_, err := s.state.UpdateStream(t.Context(), changed)
		require.Error(t, err, name)
	}
	kept, err := stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "kept", string(kept.Data))
}
