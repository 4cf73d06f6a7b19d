package recovery_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natstest"
)

// impostor publishes wrong events with an agent's real credentials.
type impostor struct {
	t  testing.TB
	js jetstream.JetStream
}

func connectImpostor(s *fixture.System, credentials natsauth.AgentCredentials) impostor {
	s.T.Helper()
	options, err := credentials.ConnectOptions()
	require.NoError(s.T, err)
	conn, err := nats.Connect(credentials.ServerURLs[0], options...)
	require.NoError(s.T, err)
	s.T.Cleanup(conn.Close)
	js := natstest.Open(s.T, conn)
	return impostor{s.T, js}
}

// publish publishes an event, of which anything may be wrong, and returns when the stream has
// stored it.
func (i impostor) publish(subject, source, eventType string, data any) {
	i.t.Helper()
	e, err := event.New(
		event.Attributes{Type: eventType, Source: source, Subject: "s", ID: uuid.NewString(), Time: time.Now()},
		data,
	)
	require.NoError(i.t, err)
	m, err := event.Encode(e, subject)
	require.NoError(i.t, err)
	_, err = i.js.PublishMsg(i.t.Context(), m)
	require.NoError(i.t, err)
}

// awaitDeadLetters waits for a number of dead letters.
func awaitDeadLetters(c fixture.CLI, n int, args ...string) []fixture.DeadLetter {
	c.T.Helper()
	var all []fixture.DeadLetter
	require.Eventually(c.T, func() bool {
		all = c.DeadLetters(args...)
		return len(all) >= n
	}, fixture.Timeout, time.Second/10)
	require.Len(c.T, all, n)
	return all
}

// TestDeadLetters publishes events that no service can process.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := fixture.Start(t, nil)
	credentials, err := natsauth.ReadAgentCredentials(s.Agents()[0].CredentialsFile)
	require.NoError(t, err)
	api, err := s.Client()
	require.NoError(t, err)
	_, second, err := stack.RegisterAgent(t.Context(), api, s.NewProject("second"), "second")
	require.NoError(t, err)
	theirs := s.CreateWith(
		&statev1.CreateWorkspaceRequest{Name: "theirs", ProjectId: second.GetProjectId(), AgentId: second.GetId()},
	)
	healthy := s.CreateRunning("healthy")
	cli, bad := s.CLI(), connectImpostor(s, credentials)
	require.Empty(t, cli.DeadLetters())

	watcher, dispatcher := event.AgentSource(
		string(stack.Cell),
		s.AgentID,
		"watcher",
	), event.AgentSource(
		string(stack.Cell),
		s.AgentID,
		"dispatcher",
	)
	applied := func(workspace string) map[string]any {
		return map[string]any{
			"workspace_id":     workspace,
			"desired_revision": 1,
			"objects":          []any{},
			"observed_at":      time.Now().UTC(),
		}
	}
	tick := events.ObservedTick{ClusterUID: "somewhere", ObservedAt: time.Now().UTC()}
	observedTick, unknown := stack.Cell.ObservedTick(s.AgentID), uuid.NewString()

	// Each event becomes a dead letter with its reason.
	type invalidEvent struct {
		subject, reason string
		publish         func(subject string)
	}
	invalidEvents := []invalidEvent{
		{observedTick, "event: ", func(subject string) {
			_, err := bad.js.Publish(t.Context(), subject, []byte("nonsense"))
			require.NoError(t, err)
		}},
		{
			observedTick,
			"expected " + watcher,
			func(subject string) { bad.publish(subject, dispatcher, events.TypeObservedTick, tick) },
		},
		{observedTick, "expected " + watcher, func(subject string) {
			bad.publish(subject, event.AgentSource(string(stack.Cell), second.GetId(), "watcher"), events.TypeObservedTick, tick)
		}},
		{
			observedTick,
			"does not belong on",
			func(subject string) { bad.publish(subject, watcher, events.TypeApplied, applied(healthy.ID)) },
		},
		{
			observedTick,
			"unknown to this version",
			func(subject string) { bad.publish(subject, watcher, "dev.lockstep.observed.dream.v1", tick) },
		},
		{observedTick, "data: ", func(subject string) {
			bad.publish(subject, watcher, events.TypeObservedTick, map[string]any{"cluster_uid": 7})
		}},
		{
			stack.Cell.ObservedResync(s.AgentID),
			`"tick" does not belong on subject`,
			func(subject string) { bad.publish(subject, watcher, events.TypeObservedTick, tick) },
		},
		{stack.Cell.Observed(s.AgentID, "deployment", "elsewhere", "d"), "does not belong on subject", func(subject string) {
			bad.publish(subject, watcher, events.TypeObservedWorkload, events.ObservedWorkload{
				Object: events.ObjectMeta{
					ClusterUID:      "c",
					Namespace:       "here",
					Name:            "d",
					UID:             "u",
					ResourceVersion: "1",
					Verb:            events.VerbUpserted,
					UpdateType:      events.UpdateTypePartial,
					ObservedAt:      time.Now().UTC(),
				},
				Kind: events.WorkloadKindDeployment,
			})
		}},
		{
			stack.Cell.Applied(s.AgentID, theirs.ID),
			"workspace " + theirs.ID + " belongs to agent ",
			func(subject string) { bad.publish(subject, dispatcher, events.TypeApplied, applied(theirs.ID)) },
		},
		{
			stack.Cell.Applied(s.AgentID, healthy.ID),
			"does not belong on subject",
			func(subject string) { bad.publish(subject, dispatcher, events.TypeApplied, applied(theirs.ID)) },
		},
		{
			stack.Cell.Applied(s.AgentID, unknown),
			fmt.Sprintf("workspace %q does not exist", unknown),
			func(subject string) { bad.publish(subject, dispatcher, events.TypeApplied, applied(unknown)) },
		},
		{observedTick, "data: ", func(subject string) { // as large as a message may be
			bad.publish(
				subject,
				watcher,
				events.TypeObservedTick,
				map[string]any{"cluster_uid": strings.Repeat("x", topology.MaxMessageSize-1000)},
			)
		}},
	}
	for _, e := range invalidEvents {
		e.publish(e.subject)
	}
	_, err = bad.js.Publish(t.Context(), observedTick, make([]byte, topology.MaxMessageSize+1))
	require.Error(t, err, "a larger message is refused")

	// Other workspaces are not delayed.
	healthy.Stop()
	healthy.AwaitStopped()
	healthy.Start()
	healthy.AwaitRunning()

	letters := awaitDeadLetters(cli, len(invalidEvents))
	for _, e := range invalidEvents {
		found := false
		for i, l := range letters {
			if found = l.Subject == e.subject && strings.Contains(l.Reason, e.reason); found {
				letters = append(letters[:i:i], letters[i+1:]...)
				require.Equal(t, "state", l.Service)
				break
			}
		}
		require.True(t, found, "no dead letter of %s with reason %q; got %+v", e.subject, e.reason, letters)
	}
	require.Len(t, cli.DeadLetters("applied."+strconv.FormatInt(s.AgentID, 10)+".*"), 3)
	require.Contains(t, cli.OK("dead", "list"), "workspace "+theirs.ID+" belongs to agent ")
	require.EqualValues(t, 0, theirs.Get().GetAppliedRevision(), "the event has no effect")

	requireRetries(s, cli, second.GetId())

	cli.OK("dead", "drop", "--all", "--subject", "observed.>")
	require.Empty(t, cli.DeadLetters("observed.>"))
	require.NotEmpty(t, cli.DeadLetters())
	cli.OK("dead", "drop", "--all")
	require.Empty(t, cli.DeadLetters())
	require.Empty(t, s.Records(topology.FamilyDead))
	require.Contains(t, cli.Fails(5, "dead", "show", "1"), "message 1 does not exist on DEAD")
	cli.OK("rebuild", "--check")
}

// requireRetries retries dead letters before their cause is fixed, after it, and ones that can
// never succeed.
func requireRetries(s *fixture.System, cli fixture.CLI, lastAgent int64) {
	t := s.T
	t.Helper()
	omitted := uint64(0)
	for _, l := range cli.DeadLetters() {
		if l.OmittedBytes > 0 {
			omitted = l.Sequence
		}
	}
	require.NotZero(t, omitted)
	require.Contains(t, cli.OK("dead", "show", strconv.FormatUint(omitted, 10)), "bytes was too large to be stored")
	code, _, stderr := cli.Run("dead", "retry", strconv.FormatUint(omitted, 10))
	require.Equal(t, 8, code, stderr)
	require.Contains(t, stderr, "cannot be retried: its")

	// After the restore of an older backup the database does not know the agent.
	coming := lastAgent + 1
	e, err := event.New(event.Attributes{
		Type:    events.TypeObservedTick,
		Source:  event.AgentSource(string(stack.Cell), coming, "watcher"),
		Subject: "s",
		ID:      uuid.NewString(),
		Time:    time.Now(),
	}, events.ObservedTick{ClusterUID: "of-the-coming", ObservedAt: time.Now().UTC()})
	require.NoError(t, err)
	m, err := event.Encode(e, stack.Cell.ObservedTick(coming))
	require.NoError(t, err)
	_, err = s.JS.PublishMsg(t.Context(), m)
	require.NoError(t, err)
	subject := fmt.Sprintf("observed.%d.>", coming)
	first := awaitDeadLetters(cli, 1, subject)[0]
	require.Equal(t, fmt.Sprintf("agent %d does not exist", coming), first.Reason)
	shown := cli.OK("dead", "show", strconv.FormatUint(first.Sequence, 10))
	require.Contains(t, shown, `"cluster_uid": "of-the-coming"`)
	require.Contains(t, shown, "ce-id: "+e.ID())

	// The cause remains: the message becomes a dead letter again.
	cli.OK("dead", "retry", strconv.FormatUint(first.Sequence, 10))
	again := awaitDeadLetters(cli, 1, subject)[0]
	require.Greater(t, again.Sequence, first.Sequence)

	api, err := s.Client()
	require.NoError(t, err)
	_, agent, err := stack.RegisterAgent(t.Context(), api, s.ProjectID, "coming")
	require.NoError(t, err)
	require.Equal(t, coming, agent.GetId())
	cli.OK("dead", "retry", "--all", "--subject", subject)
	require.Eventually(t, func() bool {
		found, err := s.API.Agents.GetAgent(t.Context(), connect.NewRequest(&statev1.GetAgentRequest{Id: coming}))
		return err == nil && found.Msg.GetAgent().GetClusterUid() == "of-the-coming"
	}, fixture.Timeout, time.Second/10)
	require.Empty(t, cli.DeadLetters(subject))
}
