package e2e_test

import (
	"encoding/json"
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

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/natstest"
)

// intruder speaks in the name of an agent, with its own credentials, and says what it should not.
type intruder struct {
	t  *testing.T
	js jetstream.JetStream
}

func (s *system) intruder(credentials natsauth.AgentCredentials) intruder {
	s.t.Helper()
	options, err := credentials.ConnectOptions()
	require.NoError(s.t, err)
	conn, err := nats.Connect(credentials.ServerURLs[0], options...)
	require.NoError(s.t, err)
	s.t.Cleanup(conn.Close)
	js := natstest.Open(s.t, conn)
	return intruder{s.t, js}
}

// says publishes an event, in which anything may be wrong, and returns when the stream has it.
func (i intruder) says(subject, source, eventType string, data any) {
	i.t.Helper()
	e, err := event.New(event.Attributes{Type: eventType, Source: source, Subject: "s", ID: uuid.NewString(), Time: time.Now()}, data)
	require.NoError(i.t, err)
	m, err := event.Encode(e, subject)
	require.NoError(i.t, err)
	_, err = i.js.PublishMsg(i.t.Context(), m)
	require.NoError(i.t, err)
}

// deadLetter is a line of lockstep dead list -o json.
type deadLetter struct {
	Sequence     uint64 `json:"sequence"`
	Service      string `json:"service"`
	Subject      string `json:"subject"`
	Reason       string `json:"reason"`
	OmittedBytes int    `json:"omitted_bytes"`
}

func (c commandLine) deadLetters(args ...string) []deadLetter {
	c.t.Helper()
	var all []deadLetter
	decoder := json.NewDecoder(strings.NewReader(c.ok(append([]string{"dead", "list", "-o", "json"}, args...)...)))
	for decoder.More() {
		var l deadLetter
		require.NoError(c.t, decoder.Decode(&l))
		all = append(all, l)
	}
	return all
}

// awaitDead waits until so many are dead.
func (c commandLine) awaitDead(n int, args ...string) []deadLetter {
	c.t.Helper()
	var all []deadLetter
	require.Eventually(c.t, func() bool {
		all = c.deadLetters(args...)
		return len(all) >= n
	}, patience, time.Second/10)
	require.Len(c.t, all, n)
	return all
}

// TestDead is one system of which an agent says what nobody can process.
func TestDead(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	credentials, err := natsauth.ReadAgentCredentials(s.Agents()[0].CredentialsFile)
	require.NoError(t, err)
	api, err := s.Client()
	require.NoError(t, err)
	_, second, err := stack.RegisterAgent(t.Context(), api, s.newProject("second"), "second")
	require.NoError(t, err)
	theirs := s.createAs(&statev1.CreateWorkspaceRequest{Name: "theirs", ProjectId: second.GetProjectId(), AgentId: second.GetId()})
	healthy := s.createRunning("healthy")
	cli, bad := s.commandLine(), s.intruder(credentials)
	require.Empty(t, cli.deadLetters())

	watcher, dispatcher := event.AgentSource(string(stack.Cell), s.agent, "watcher"), event.AgentSource(string(stack.Cell), s.agent, "dispatcher")
	applied := func(workspace string) map[string]any {
		return map[string]any{"workspace_id": workspace, "desired_revision": 1, "objects": []any{}, "observed_at": time.Now().UTC()}
	}
	tick := events.ObservedTick{ClusterUID: "somewhere", ObservedAt: time.Now().UTC()}
	observedTick, unknown := stack.Cell.ObservedTick(s.agent), uuid.NewString()

	// Each is said, and dies for its reason.
	type lie struct {
		subject, reason string
		say             func(subject string)
	}
	lies := []lie{
		{observedTick, "event: ", func(subject string) {
			_, err := bad.js.Publish(t.Context(), subject, []byte("nonsense"))
			require.NoError(t, err)
		}},
		{observedTick, "only " + watcher + " writes on", func(subject string) { bad.says(subject, dispatcher, events.TypeObservedTick, tick) }},
		{observedTick, "only " + watcher + " writes on", func(subject string) {
			bad.says(subject, event.AgentSource(string(stack.Cell), second.GetId(), "watcher"), events.TypeObservedTick, tick)
		}},
		{observedTick, "does not belong on", func(subject string) { bad.says(subject, watcher, events.TypeApplied, applied(healthy.id)) }},
		{observedTick, "is not known to this version", func(subject string) { bad.says(subject, watcher, "dev.lockstep.observed.dream.v1", tick) }},
		{observedTick, "data: ", func(subject string) {
			bad.says(subject, watcher, events.TypeObservedTick, map[string]any{"cluster_uid": 7})
		}},
		{stack.Cell.ObservedResync(s.agent), "a tick does not belong on subject", func(subject string) { bad.says(subject, watcher, events.TypeObservedTick, tick) }},
		{stack.Cell.Observed(s.agent, "deployment", "elsewhere", "d"), "does not belong on subject", func(subject string) {
			bad.says(subject, watcher, events.TypeObservedDeployment, events.ObservedDeployment{Object: events.ObjectMeta{
				ClusterUID: "c", Namespace: "here", Name: "d", UID: "u", ResourceVersion: "1", Verb: events.VerbUpserted, UpdateType: events.UpdateTypePartial, ObservedAt: time.Now().UTC(),
			}})
		}},
		{stack.Cell.Applied(s.agent, theirs.id), "workspace " + theirs.id + " is another agent's", func(subject string) { bad.says(subject, dispatcher, events.TypeApplied, applied(theirs.id)) }},
		{stack.Cell.Applied(s.agent, healthy.id), "is not that of subject", func(subject string) { bad.says(subject, dispatcher, events.TypeApplied, applied(theirs.id)) }},
		{stack.Cell.Applied(s.agent, unknown), fmt.Sprintf("workspace %q does not exist", unknown), func(subject string) { bad.says(subject, dispatcher, events.TypeApplied, applied(unknown)) }},
		{observedTick, "data: ", func(subject string) { // as large as a message may be
			bad.says(subject, watcher, events.TypeObservedTick, map[string]any{"cluster_uid": strings.Repeat("x", topology.MaxMessageSize-1000)})
		}},
	}
	for _, lie := range lies {
		lie.say(lie.subject)
	}
	_, err = bad.js.Publish(t.Context(), observedTick, make([]byte, topology.MaxMessageSize+1))
	require.Error(t, err, "what is larger is not stored at all")

	// Nobody is held up.
	healthy.stop()
	healthy.untilStopped()
	healthy.start()
	healthy.untilRunning()

	letters := cli.awaitDead(len(lies))
	for _, lie := range lies {
		found := false
		for i, l := range letters {
			if found = l.Subject == lie.subject && strings.Contains(l.Reason, lie.reason); found {
				letters = append(letters[:i:i], letters[i+1:]...)
				require.Equal(t, "state", l.Service)
				break
			}
		}
		require.True(t, found, "nothing from %s is dead because it %q; left are %+v", lie.subject, lie.reason, letters)
	}
	require.Len(t, cli.deadLetters("applied."+strconv.FormatInt(s.agent, 10)+".*"), 3)
	require.Contains(t, cli.ok("dead", "list"), "workspace "+theirs.id+" is another agent's")
	require.EqualValues(t, 0, theirs.get().GetAppliedRevision(), "and nothing came of it")

	requireRetries(s, cli, second.GetId())

	cli.ok("dead", "drop", "--all", "--subject", "observed.>")
	require.Empty(t, cli.deadLetters("observed.>"))
	require.NotEmpty(t, cli.deadLetters())
	cli.ok("dead", "drop", "--all")
	require.Empty(t, cli.deadLetters())
	require.Empty(t, s.records(topology.FamilyDead))
	require.Contains(t, cli.fails(5, "dead", "show", "1"), "there is no message 1 on DEAD")
	cli.ok("rebuild", "--check")
}

// requireRetries retries what is dead: before its cause is mended, after it, and what can never be.
func requireRetries(s *system, cli commandLine, lastAgent int64) {
	t := s.t
	t.Helper()
	omitted := uint64(0)
	for _, l := range cli.deadLetters() {
		if l.OmittedBytes > 0 {
			omitted = l.Sequence
		}
	}
	require.NotZero(t, omitted)
	require.Contains(t, cli.ok("dead", "show", strconv.FormatUint(omitted, 10)), "bytes of data were too large to be kept")
	code, _, stderr := cli.run("dead", "retry", strconv.FormatUint(omitted, 10))
	require.Equal(t, 8, code, stderr)
	require.Contains(t, stderr, "cannot be retried: its")

	// An agent that a database restored from an older copy does not know.
	coming := lastAgent + 1
	e, err := event.New(event.Attributes{
		Type: events.TypeObservedTick, Source: event.AgentSource(string(stack.Cell), coming, "watcher"), Subject: "s", ID: uuid.NewString(), Time: time.Now(),
	}, events.ObservedTick{ClusterUID: "of-the-coming", ObservedAt: time.Now().UTC()})
	require.NoError(t, err)
	m, err := event.Encode(e, stack.Cell.ObservedTick(coming))
	require.NoError(t, err)
	_, err = s.js.PublishMsg(t.Context(), m)
	require.NoError(t, err)
	subject := fmt.Sprintf("observed.%d.>", coming)
	first := cli.awaitDead(1, subject)[0]
	require.Equal(t, fmt.Sprintf("agent %d does not exist", coming), first.Reason)
	shown := cli.ok("dead", "show", strconv.FormatUint(first.Sequence, 10))
	require.Contains(t, shown, `"cluster_uid": "of-the-coming"`)
	require.Contains(t, shown, "ce-id: "+e.ID())

	// Nothing is mended: it comes back.
	cli.ok("dead", "retry", strconv.FormatUint(first.Sequence, 10))
	again := cli.awaitDead(1, subject)[0]
	require.Greater(t, again.Sequence, first.Sequence)

	api, err := s.Client()
	require.NoError(t, err)
	_, agent, err := stack.RegisterAgent(t.Context(), api, s.project, "coming")
	require.NoError(t, err)
	require.Equal(t, coming, agent.GetId())
	cli.ok("dead", "retry", "--all", "--subject", subject)
	require.Eventually(t, func() bool {
		found, err := s.api.Agents.GetAgent(t.Context(), connect.NewRequest(&statev1.GetAgentRequest{Id: coming}))
		return err == nil && found.Msg.GetAgent().GetClusterUid() == "of-the-coming"
	}, patience, time.Second/10)
	require.Empty(t, cli.deadLetters(subject))
}
