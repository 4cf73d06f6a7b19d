package security_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/stack"
)

// attackName is part of the name of everything that an attacker tries to create.
const attackName = "evil"

// attack is one attempt of an attacker. It fails the test if the server accepts what it must refuse.
type attack struct {
	name string
	do   func(i *attacker)
}

// attacks returns all attempts.
func (s *isolationScenario) attacks() []attack {
	all := []attack{
		{"publish on all subjects of streams", func(i *attacker) { i.publishAllDenied(s.targets(), []byte("{}"), nil) }},
		{
			"publish a valid event on others' subjects",
			func(i *attacker) { i.publishAllDenied(s.subjects(), s.copied(), s.copiedHeader()) },
		},
		{"subscribe to all subjects of streams", func(i *attacker) { i.subscribeAllDenied(s.targets(), "") }},
		{"subscribe in the queue groups of services", func(i *attacker) {
			for _, queue := range []string{"state", "callout", "auth", "lockstep"} {
				i.subscribeAllDenied(services(s.victim.AgentID), queue)
			}
		}},
		{"subscribe to wildcards", func(i *attacker) {
			i.subscribeAllDenied(wildcards(s.victim.AgentID), "")
			i.subscribeAllDenied(wildcards(s.victim.AgentID), "q")
		}},
		{"publish to wildcards", func(i *attacker) { i.publishAllDenied(wildcards(s.victim.AgentID), nil, nil) }},
		{"publish to inboxes of others", func(i *attacker) { i.publishAllDenied(s.inboxes(), []byte("forged"), nil) }},
		{
			"publish on subjects of servers and buckets",
			func(i *attacker) { i.publishAllDenied(serverSubjects(), []byte("{}"), nil) },
		},
		{
			"subscribe to subjects of servers and buckets",
			func(i *attacker) { i.subscribeAllDenied(serverSubjects(), "") },
		},
		{
			"reply to secret requests in place of the state service",
			func(i *attacker) { i.subscribeDenied(stack.Cell.Secret(s.victim.AgentID, "*"), "state") },
		},
		{"request secrets of others' workspaces", func(i *attacker) { i.requestSecretsOf(s.workspaces, s.victim.AgentID) }},
		{"publish events with the identity of others", func(i *attacker) { i.publishFalseFacts(s) }},
		{
			"acknowledge messages of others' consumers",
			func(i *attacker) { i.publishAllDenied(s.acks(s.victim.AgentID), []byte("+ACK"), nil) },
		},
		{
			"terminate messages of others' consumers",
			func(i *attacker) { i.publishAllDenied(s.acks(s.victim.AgentID), []byte("+TERM"), nil) },
		},
		{
			"request the next message of others' consumers",
			func(i *attacker) { i.publishAllDenied(s.acks(s.victim.AgentID), []byte(`+NXT {"batch":9}`), nil) },
		},
		{"have own next messages sent to others' subjects", func(i *attacker) {
			i.pullWithReplies(s.acks(i.own.AgentID), s.replies(), []byte(`+NXT {"batch":1,"no_wait":true}`))
		}},
		{
			"have replies to acknowledgements sent to others' subjects",
			func(i *attacker) { i.publishWithReplies(s.acks(i.own.AgentID), s.replies(), []byte("+ACK")) },
		},
		{
			"have publish acknowledgements sent to others' subjects",
			func(i *attacker) { i.publishWithReplies(ownFacts(i), s.replies(), []byte("{}")) },
		},
		{"have replies with secrets sent to others' subjects", func(i *attacker) {
			requests := []string{stack.Cell.Secret(i.own.AgentID, i.workspace)}
			i.publishWithReplies(requests, s.replies(), []byte(`{"name":"x","digest":"y"}`))
		}},
		{"have pulled messages sent to others' subjects", func(i *attacker) {
			i.pullWithReplies(ownRequests(i, "MSG.NEXT"), s.replies(), []byte(`{"batch":1,"no_wait":true}`))
		}},
		{"have statuses of ended pulls sent to others' subjects", func(i *attacker) {
			i.publishWithReplies(ownRequests(i, "MSG.NEXT"), s.replies(), []byte(`{"batch":5,"expires":1000000}`))
		}},
		{
			"have consumer infos sent to others' subjects",
			func(i *attacker) { i.publishWithReplies(ownRequests(i, "INFO"), s.replies(), nil) },
		},
		{
			"have replies to consumer resets sent to others' subjects",
			func(i *attacker) { i.publishWithReplies(ownRequests(i, "RESET"), s.replies(), []byte(`{"seq":1}`)) },
		},
		{"have replies to malformed requests sent to others' subjects", func(i *attacker) {
			for _, verb := range []string{"MSG.NEXT", "INFO", "RESET"} {
				i.publishWithReplies(ownRequests(i, verb), s.replies(), []byte("{"))
			}
		}},
	}
	for _, header := range harmfulHeaders(s) {
		all = append(all,
			attack{"publish on others' subjects with " + header.name, func(i *attacker) {
				i.traceSubject = header.header.Get(server.MsgTraceDest)
				i.publishAllDenied(s.subjects(), []byte("{}"), header.header)
			}},
			attack{"publish on own subjects with " + header.name, func(i *attacker) {
				i.traceSubject = header.header.Get(server.MsgTraceDest)
				for _, subject := range ownFacts(i) {
					i.publish(&nats.Msg{Subject: subject, Reply: i.inbox("answer"), Header: header.header, Data: []byte("1")})
				}
			}})
	}
	for _, request := range s.apiRequests() {
		all = append(all, attack{"request JetStream to " + request.name, func(i *attacker) {
			for _, subject := range request.subjects {
				if !i.isOwnRequest(subject) {
					i.publishDenied(subject, request.body, nil)
				}
			}
		}})
	}
	return all
}

// publishAllDenied publishes on all of the subjects.
func (i *attacker) publishAllDenied(subjects []string, data []byte, header nats.Header) {
	i.t.Helper()
	require.NotEmpty(i.t, subjects)
	for _, subject := range subjects {
		i.publishDenied(subject, data, header)
	}
}

// subscribeAllDenied subscribes to all of the subjects.
func (i *attacker) subscribeAllDenied(subjects []string, queue string) {
	i.t.Helper()
	require.NotEmpty(i.t, subjects)
	for _, subject := range subjects {
		i.subscribeDenied(subject, queue)
	}
}

// publishWithReplies publishes on the attacker's own subjects with reply subjects of others.
func (i *attacker) publishWithReplies(carriers, replies []string, data []byte) {
	i.t.Helper()
	require.NotEmpty(i.t, replies)
	for _, carrier := range carriers {
		for _, reply := range replies {
			i.publish(&nats.Msg{Subject: carrier, Reply: reply, Data: data})
			if reserved(reply) {
				i.flush()
				i.awaitViolation(fmt.Sprintf("Reply of %q", reply))
			}
		}
		i.flush()
	}
}

// reserved reports whether the server itself rejects a reply subject as forged.
func reserved(reply string) bool {
	prefixes := []string{"$JS.ACK.", "_R_.", "_GR_.", "$GR."}
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(reply, prefix) })
}

// pullWithReplies is publishWithReplies with a message pending on each of the attacker's consumers.
func (i *attacker) pullWithReplies(carriers, replies []string, data []byte) {
	i.t.Helper()
	for _, reply := range replies {
		for _, consumer := range topology.AgentConsumers(stack.Cell, i.own.AgentID) {
			_, err := i.js.ResetConsumerToSequence(i.t.Context(), consumer.Stream, consumer.Config.Durable, 1)
			require.NoError(i.t, err)
		}
		i.publishWithReplies(carriers, []string{reply}, data)
	}
}

// isOwnRequest reports whether an agent may send the JetStream request about its own consumers.
func (i *attacker) isOwnRequest(subject string) bool {
	own := slices.Concat(ownRequests(i, "MSG.NEXT"), ownRequests(i, "INFO"), ownRequests(i, "RESET"))
	return slices.Contains(own, subject)
}

func ownRequests(i *attacker, verb string) []string {
	var all []string
	for _, consumer := range topology.AgentConsumers(stack.Cell, i.own.AgentID) {
		all = append(all, "$JS.API.CONSUMER."+verb+"."+consumer.Stream+"."+consumer.Config.Durable)
	}
	return all
}

func ownFacts(i *attacker) []string {
	return []string{
		stack.Cell.Observed(i.own.AgentID, "deployment", "ws", "a"),
		stack.Cell.ObservedResync(i.own.AgentID),
		stack.Cell.Applied(i.own.AgentID, i.workspace),
	}
}
