package natsauth_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
)

// families are all first tokens after the cell, those of streams and those without.
func families() []string {
	names := make([]string, 0, 32)
	names = append(names, topology.FamilySecret, "deploy", "agent", "job", "nowhere")

	for _, s := range topology.Streams() {
		names = append(names, s.Family)
	}

	return names
}

// factSubjects are subjects of every family and depth for one agent.
func factSubjects(agent string) []string {
	var subjects []string

	for _, family := range families() {
		prefix := "lockstep.local." + family
		subjects = append(subjects,
			prefix+"."+agent, prefix+"."+agent+".w", prefix+"."+agent+".resync", prefix+"."+agent+".deployment.ns.name",
			prefix+".state."+agent+".w", prefix+".x", prefix)
	}

	observed := "lockstep.local.observed." + agent
	for _, deeper := range []string{
		".deployment.ns.name.deeper", ".deployment.ns", ".tick.deeper", ".rejected", ".members",
		".workload.deployment.ns.name",
		".workload.deployment.ns.name.deeper", ".a.b.c.d.e.f.g.h.i.j.k",
	} {
		subjects = append(subjects, observed+deeper)
	}

	return append(
		subjects, "lockstep.other.observed."+agent+".x", "lockstep.local.observed.cluster.uid.released", "lockstep.local",
		"other",
	)
}

// apiSubjects are all requests that JetStream has, for one consumer name.
func apiSubjects(consumer string) []string {
	subjects := make([]string, 0, 512)
	subjects = append(
		subjects, server.JSApiAccountInfo, server.JSApiStreams, server.JSApiStreamList, server.JSApiLeaderStepDown,
		server.JSApiRemoveServer, server.JSApiEvacuateServer, server.JSApiMetaRescue,
		fmt.Sprintf(server.JSApiAccountPurgeT, "CONTROL"),
		fmt.Sprintf(server.JSApiServerStreamMoveT, "CONTROL", "DESIRED"),
		fmt.Sprintf(server.JSApiServerStreamCancelMoveT, "CONTROL", "DESIRED"),
		fmt.Sprintf(server.JSApiStreamCreateT, "EVIL"),
	)

	for _, stream := range append(
		topology.Streams(), topology.Stream{Name: topology.StreamRelays, Family: "relays"},
		topology.Stream{Name: topology.StreamCells, Family: topology.FamilyCellsLive},
		topology.Stream{Name: topology.StreamGateway, Family: topology.FamilyGatewayLive},
	) {
		for _, format := range []string{
			server.JSApiStreamCreateT, server.JSApiStreamUpdateT, server.JSApiStreamInfoT, server.JSApiStreamDeleteT,
			server.JSApiStreamPurgeT, server.JSApiStreamSnapshotT, server.JSApiStreamRestoreT, server.JSApiMsgDeleteT,
			server.JSApiMsgGetT, server.JSDirectMsgGetT, server.JSApiStreamRemovePeerT, server.JSApiStreamEvacuatePeerT,
			server.JSApiStreamCancelMoveT, server.JSApiStreamLeaderStepDownT, server.JSApiConsumerCreateT,
			server.JSApiConsumersT, server.JSApiConsumerListT,
		} {
			subjects = append(subjects, fmt.Sprintf(format, stream.Name))
		}

		for _, format := range []string{
			server.JSApiDurableCreateT, server.JSApiConsumerInfoT, server.JSApiConsumerDeleteT, server.JSApiConsumerPauseT,
			server.JSApiRequestNextT, server.JSApiConsumerResetT, server.JSApiConsumerUnpinT,
			server.JSApiConsumerLeaderStepDownT, server.JSApiConsumerRemovePeerT, server.JSApiConsumerEvacuatePeerT,
			"$JS.API.CONSUMER.CREATE.%s.%s", "$JS.ACK.%s.%s.1.1.1.1.0", "$JS.FC.%s.%s.x",
		} {
			subjects = append(subjects, fmt.Sprintf(format, stream.Name, consumer))
		}

		subjects = append(subjects,
			fmt.Sprintf(server.JSDirectGetLastBySubjectT, stream.Name, "lockstep.local."+stream.Family+".18.w"),
			fmt.Sprintf(server.JSApiConsumerCreateExT, stream.Name, consumer, "lockstep.local."+stream.Family+".>"),
			"$JS.ACK.domain.hash."+stream.Name+"."+consumer+".1.1.1.1.0.x",
		)
	}

	return subjects
}

// serverSubjects are what servers, gateways and other features listen to.
func serverSubjects() []string {
	return []string{
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.SERVER.x.KICK", "$SYS.REQ.SERVER.x.RELOAD",
		"$SYS.REQ.ACCOUNT.CONTROL.CONNZ", "$SYS.REQ.ACCOUNT.AGENTS.SUBSZ", "$SYS.REQ.ACCOUNT.PING.CONNZ",
		"$SYS.REQ.ACCOUNT.PING.STATZ", "$SYS.REQ.USER.INFO", "$SYS.REQ.USER.AUTH", "$SYS.ACCOUNT.CONTROL.CONNECT", "$SYS.x",
		"$KV.b.k", "$O.b.k", "$MQTT.x", "$SRV.PING", "$NRG.V.x", "$JSC.R.x",
		"_INBOX.x", "_INBOX_18.x", "_INBOX_18.x.y", "_INBOX_17", "_INBOX_17.x", "_INBOX_17x.y", "_INBOX_state.x",
		"_R_.x", "_R_.x.y.z", "_GR_.x.y.z", "$GR.x.y",
	}
}

func wildcardSubjects() []string {
	return []string{
		">",
		"*",
		"*.>",
		"*.*.>",
		"lockstep.>",
		"lockstep.*.>",
		"lockstep.local.>",
		"lockstep.local.*.17.>",
		"lockstep.local.*.18.>",
		"lockstep.local.observed.*.>",
		"lockstep.local.observed.>",
		"_INBOX.>",
		"_INBOX_18.>",
		"_INBOX_18.*",
		"*.x",
		"$SYS.>",
		"$JS.>",
		"$JS.API.>",
		"$JS.API.CONSUMER.MSG.NEXT.DESIRED.*",
		"$JS.ACK.>",
		"$JS.ACK.DESIRED.*.>",
		"_R_.>",
		"_GR_.>",
		"$KV.>",
	}
}

// allowedTo reports whether agent 17 may publish to the subject, independently of the implementation.
func allowedTo(subject string) bool {
	for _, prefix := range []string{
		"$JS.ACK.DESIRED.dispatcher-17.", "$JS.ACK.CONTROL.dispatcher-17.", "$JS.ACK.CONTROL.watcher-17.",
	} {
		if strings.HasPrefix(subject, prefix) {
			return true
		}
	}

	if rest, ok := strings.CutPrefix(subject, "lockstep.local.observed.17."); ok {
		switch object, tracked := strings.CutPrefix(rest, "workload."); strings.Count(object, ".") {
		case 2:
			return true // <kind>.<namespace>.<name>
		case 0:
			return !tracked && slices.Contains([]string{"resync", "members", "tick", "rejected"}, object)
		default:
			return false
		}
	}

	for _, prefix := range []string{"lockstep.local.applied.17.", "lockstep.local.secret.17."} {
		if rest, ok := strings.CutPrefix(subject, prefix); ok && !strings.Contains(rest, ".") {
			return true
		}
	}

	for _, verb := range []string{"MSG.NEXT", "INFO", "RESET"} {
		switch subject {
		case "$JS.API.CONSUMER." + verb + ".DESIRED.dispatcher-17",
			"$JS.API.CONSUMER." + verb + ".CONTROL.dispatcher-17",
			"$JS.API.CONSUMER." + verb + ".CONTROL.watcher-17":
			return true
		}
	}

	return false
}

func everySubject() []string {
	var subjects []string
	for _, agent := range []string{"17", "18", "1", "170", "17%", "+17", "017"} {
		subjects = append(subjects, factSubjects(agent)...)
	}

	for _, consumer := range []string{
		"dispatcher-17", "watcher-17", "dispatcher-18", "watcher-18", "dispatcher-170", "dispatcher-1", "other",
	} {
		subjects = append(subjects, apiSubjects(consumer)...)
	}

	subjects = append(subjects, serverSubjects()...)
	slices.Sort(subjects)

	return slices.Compact(subjects)
}

func TestAgentMayPublishNothingElse(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	c.fillStreams(t)
	before := c.foreign(t)
	agent := c.agent(t, agentOne)
	all := append(everySubject(), wildcardSubjects()...)
	forbidden := slices.DeleteFunc(slices.Clone(all), allowedTo)

	agent.requireDenied(t, forbidden, func(subject string) {
		require.NoError(t, agent.PublishRequest(subject, "_INBOX_17.answer", []byte("{}")))
	})
	require.Greater(t, len(forbidden), 500)
	require.Less(t, len(forbidden), len(all), "the table contains no allowed subject")
	require.Equal(t, before, c.foreign(t))
	require.True(t, agent.IsConnected())
}

func TestAgentMaySubscribeToNothingElse(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	agent := c.agent(t, agentOne)

	forbidden := slices.DeleteFunc(append(everySubject(), wildcardSubjects()...), func(subject string) bool {
		return strings.HasPrefix(subject, "_INBOX_17.")
	})

	for _, queue := range []string{"", "q"} {
		agent.requireDenied(t, forbidden, func(subject string) {
			require.NoError(t, agent.trySubscribe(subject, queue))
		})
	}
}

// TestReplyInjection publishes on everything that an agent may, with a reply that it may not
// publish to, so that the server's answer lands there.
func TestReplyInjection(t *testing.T) {
	t.Parallel()
	c := startCell(t)
	c.fillStreams(t)

	_, err := c.state.Subscribe("lockstep.local.secret.*.*", func(m *nats.Msg) {
		if err := m.Respond([]byte("secret")); err != nil {
			t.Error(err)
		}
	})
	require.NoError(t, err)
	require.NoError(t, c.state.Flush())

	before := c.foreign(t)
	agent := c.agent(t, agentOne)
	js := agent.jetStream(t)

	var carriers, targets []string

	attacker := confined()[slices.IndexFunc(confined(), func(p principal) bool { return p.name == "17" })]

	for _, subject := range everySubject() {
		if allowedTo(subject) {
			carriers = append(carriers, subject)
		} else {
			targets = append(targets, subject)
		}
	}

	for _, carrier := range attacker.representatives(2, carriers) {
		body := []byte("")
		if strings.Contains(carrier, "MSG.NEXT") {
			body = []byte(`{"batch":1,"no_wait":true}`)
		}

		for _, target := range targets {
			require.NoError(t, agent.PublishRequest(carrier, target, body))
		}

		require.NoError(t, agent.FlushWithContext(testContext(t)))
		// A valid request per path: all earlier requests are answered after it.
		_, err := js.Publish(testContext(t), "lockstep.local.observed.17.resync", nil)
		require.NoError(t, err)
		_, err = js.Publish(testContext(t), "lockstep.local.applied.17.w", nil)
		require.NoError(t, err)
		_, err = agent.RequestWithContext(testContext(t), "lockstep.local.secret.17.w", nil)
		require.NoError(t, err)

		for _, own := range topology.AgentConsumers(cellName, agentOne) {
			_, err = js.Consumer(testContext(t), own.Stream, own.Config.Durable)
			require.NoError(t, err)
		}
	}

	require.Equal(t, before, c.foreign(t))
}

// TestControlHeaders publishes on an allowed subject with every header that asks the server for
// something special.
func TestControlHeaders(t *testing.T) {
	t.Parallel()

	c := startCell(t)
	c.fillStreams(t)
	before := c.foreign(t)
	agent := c.agent(t, agentOne)

	for _, header := range []map[string]string{
		{server.JSMsgRollup: server.JSMsgRollupAll},
		{server.JSMsgRollup: server.JSMsgRollupSubject},
		{server.JSMessageTTL: "1s"},
		{server.JSMessageIncr: "1"},
		{server.JSBatchId: "b", server.JSBatchSeq: "1", server.JSBatchCommit: "1"},
		{
			server.JSSchedulePattern: "@at 2000-01-01T00:00:00Z",
			server.JSScheduleTarget:  "lockstep.local.observed.18.deployment.ns.name",
		},
		{server.JSExpectedStream: "DESIRED"},
		{server.JSStreamSource: "DESIRED 1"},
		{server.JSMsgId: "id-of-another"},
		{server.ClientInfoHdr: `{"acc":"CONTROL","svc":"CONTROL"}`},
		{server.MsgTraceDest: "lockstep.local.desired.18.w"},
		{server.MsgTraceDest: "lockstep.local.observed.18.deployment.ns.name"},
		{server.MsgTraceDest: "_INBOX_18.x", server.MsgTraceOnly: "true"},
		{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	} {
		for _, subject := range []string{"lockstep.local.observed.17.resync", "lockstep.local.applied.17.w"} {
			message := nats.NewMsg(subject)
			message.Data = []byte("0")
			message.Reply = "_INBOX_17.nobody"

			for name, value := range header {
				message.Header.Set(name, value)
			}

			require.NoError(t, agent.PublishMsg(message))
		}

		_, err := agent.jetStream(t).Publish(testContext(t), "lockstep.local.observed.17.resync", nil)
		require.NoError(t, err)
		require.Equal(t, before, c.foreign(t), header)
	}
	// Message ids are shared in a stream, so an agent can use one up. Messages without an id are not affected.
	_, err := c.agent(t, agentTwo).jetStream(t).Publish(testContext(t), "lockstep.local.observed.18.resync", nil)
	require.NoError(t, err)
	require.NotEqual(t, before, c.foreign(t), "foreign would not notice a change")
}

// fillStreams stores messages of agents 17 and 18 in every stream.
func (c *cell) fillStreams(t *testing.T) {
	t.Helper()

	for _, subject := range []string{
		"desired.18.w", "control.18.resync", "desired.17.w", "control.17.resync", "workspace.1.w.created", "directory.user.1",
	} {
		_, err := c.js.Publish(testContext(t), "lockstep.local."+subject, []byte("{}"))
		require.NoError(t, err)
	}

	for _, subject := range []string{"$KV.CELLS.cell.local", "$KV.CELLS.cell.two", "$KV.CELLS.organization.7"} {
		_, err := jetStreamOf(t, c.static(t, natsauth.PrincipalCells)).Publish(testContext(t), subject, []byte("{}"))
		require.NoError(t, err)
	}

	other := c.agent(t, agentTwo)
	for _, subject := range []string{"observed.18.deployment.ns.name", "applied.18.w"} {
		_, err := other.jetStream(t).Publish(testContext(t), "lockstep.local."+subject, []byte("{}"))
		require.NoError(t, err)
	}

	other.Close()
}

func jetStreamOf(t *testing.T, conn *nats.Conn) jetstream.JetStream {
	t.Helper()

	js, err := jetstream.New(conn)
	require.NoError(t, err)

	return js
}

// foreign returns all stream content that agent 17 must not change.
func (c *cell) foreign(t *testing.T) map[string]any {
	t.Helper()

	return c.stored(t, func(subject string) bool {
		return strings.HasPrefix(subject, "lockstep.local.observed.17.") ||
			strings.HasPrefix(subject, "lockstep.local.applied.17.")
	}, func(_, consumer string) bool { return strings.HasSuffix(consumer, "-17") })
}

// stored is everything in the cell's streams but these subjects and consumers. The number of pending messages
// follows from it, and the server updates that one after it has acknowledged a message.
func (c *cell) stored(
	t *testing.T, exceptSubject func(string) bool, exceptConsumer func(stream, consumer string) bool,
) map[string]any {
	t.Helper()

	found := make(map[string]any)

	streams := c.js.ListStreams(testContext(t))
	for info := range streams.Info() {
		found["config of "+info.Config.Name] = info.Config

		stream, err := c.js.Stream(testContext(t), info.Config.Name)
		require.NoError(t, err)
		details, err := stream.Info(testContext(t), jetstream.WithSubjectFilter(">"))
		require.NoError(t, err)

		for subject := range details.State.Subjects {
			if exceptSubject(subject) || strings.HasSuffix(subject, ".settled") {
				continue
			}

			last, err := stream.GetLastMsgForSubject(testContext(t), subject)
			require.NoError(t, err)
			found[subject] = fmt.Sprintf(
				"%d messages, the last %d: %s", details.State.Subjects[subject], last.Sequence, last.Data,
			)
		}

		consumers := stream.ListConsumers(testContext(t))
		for consumer := range consumers.Info() {
			if !exceptConsumer(info.Config.Name, consumer.Name) {
				found[info.Config.Name+" "+consumer.Name] = []any{
					consumer.Config,
					consumer.Delivered,
					consumer.AckFloor,
					consumer.NumWaiting,
					consumer.NumAckPending,
				}
			}
		}

		require.NoError(t, consumers.Err())
	}

	require.NoError(t, streams.Err())
	require.NotEmpty(t, found)

	return found
}
