package security_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/tools/stack"
)

// attackName is part of the name of everything that an attacker tries to create.
const attackName = "evil"

// attack is one thing that an attacker tries. It fails the test if the server accepts what it must
// refuse.
type attack struct {
	name string
	do   func(i *attacker)
}

// attempts returns everything that is tried.
func (s *isolationScenario) attempts() []attack {
	all := []attack{
		{"publish on everything that is stored", func(i *attacker) { i.publishAllDenied(s.targets(), []byte("{}"), nil) }},
		{
			"publish what would be a valid event",
			func(i *attacker) { i.publishAllDenied(s.subjects(), s.copied(), s.copiedHeader()) },
		},
		{"subscribe to everything that is stored", func(i *attacker) { i.subscribeAllDenied(s.targets(), "") }},
		{"subscribe in the queues of services", func(i *attacker) {
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
			"publish to what belongs to servers and buckets",
			func(i *attacker) { i.publishAllDenied(serverSubjects(), []byte("{}"), nil) },
		},
		{
			"subscribe to what belongs to servers and buckets",
			func(i *attacker) { i.subscribeAllDenied(serverSubjects(), "") },
		},
		{
			"answer in place of the secrets' keeper",
			func(i *attacker) { i.subscribeDenied(stack.Cell.Secret(s.victim.AgentID, "*"), "state") },
		},
		{"ask for another's secrets as oneself", func(i *attacker) { i.asksForSecretsOf(s.workspaces, s.victim.AgentID) }},
		{"lie about who one is in one's own events", func(i *attacker) { i.publishFalseFacts(s) }},
		{
			"acknowledge what another is to take",
			func(i *attacker) { i.publishAllDenied(s.acks(s.victim.AgentID), []byte("+ACK"), nil) },
		},
		{
			"reject what another is to take",
			func(i *attacker) { i.publishAllDenied(s.acks(s.victim.AgentID), []byte("+TERM"), nil) },
		},
		{
			"have another's next message sent to oneself",
			func(i *attacker) { i.publishAllDenied(s.acks(s.victim.AgentID), []byte(`+NXT {"batch":9}`), nil) },
		},
		{"have one's next message sent as another's truth", func(i *attacker) {
			i.pullWithReplies(s.acks(i.own.AgentID), s.replies(), []byte(`+NXT {"batch":1,"no_wait":true}`))
		}},
		{
			"have acknowledgements of one's acknowledgements stored",
			func(i *attacker) { i.publishWithReplies(s.acks(i.own.AgentID), s.replies(), []byte("+ACK")) },
		},
		{
			"have receipts of one's events stored",
			func(i *attacker) { i.publishWithReplies(ownFacts(i), s.replies(), []byte("{}")) },
		},
		{"have answers about secrets stored", func(i *attacker) {
			i.publishWithReplies(
				[]string{stack.Cell.Secret(i.own.AgentID, i.workspace)},
				s.replies(),
				[]byte(`{"name":"x","digest":"y"}`),
			)
		}},
		{"have pulled messages stored", func(i *attacker) {
			i.pullWithReplies(ownRequests(i, "MSG.NEXT"), s.replies(), []byte(`{"batch":1,"no_wait":true}`))
		}},
		{"have pulls that end stored", func(i *attacker) {
			i.publishWithReplies(ownRequests(i, "MSG.NEXT"), s.replies(), []byte(`{"batch":5,"expires":1000000}`))
		}},
		{
			"have what consumers are stored",
			func(i *attacker) { i.publishWithReplies(ownRequests(i, "INFO"), s.replies(), nil) },
		},
		{
			"have the answer to a reset stored",
			func(i *attacker) { i.publishWithReplies(ownRequests(i, "RESET"), s.replies(), []byte(`{"seq":1}`)) },
		},
		{"have what the API cannot read stored", func(i *attacker) {
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
			attack{"publish on one's own with " + header.name, func(i *attacker) {
				i.traceSubject = header.header.Get(server.MsgTraceDest)
				for _, subject := range ownFacts(i) {
					i.publish(&nats.Msg{Subject: subject, Reply: i.inbox("answer"), Header: header.header, Data: []byte("1")})
				}
			}})
	}
	for _, request := range s.apiRequests() {
		all = append(all, attack{"ask JetStream to " + request.name, func(i *attacker) {
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
				i.awaitComplaint(fmt.Sprintf("Reply of %q", reply))
			}
		}
		i.flush()
	}
}

// reserved reports whether the server itself rejects a reply subject as forged.
func reserved(reply string) bool {
	return slices.ContainsFunc(
		[]string{"$JS.ACK.", "_R_.", "_GR_.", "$GR."},
		func(prefix string) bool { return strings.HasPrefix(reply, prefix) },
	)
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
	return slices.Contains(
		slices.Concat(ownRequests(i, "MSG.NEXT"), ownRequests(i, "INFO"), ownRequests(i, "RESET")),
		subject,
	)
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
		stack.Cell.Observed(
			i.own.AgentID,
			"deployment",
			"ws",
			"a",
		),
		stack.Cell.ObservedResync(i.own.AgentID),
		stack.Cell.Applied(i.own.AgentID, i.workspace),
	}
}

// targets returns subjects of every family, used and unused.
func (s *isolationScenario) targets() []string {
	all := s.subjects()
	victim := strconv.FormatInt(s.victim.AgentID, 10)
	families := []string{topology.FamilySecret, "deploy", "agent", "job", "nowhere", attackName}
	for _, stream := range topology.Streams() {
		families = append(families, stream.Family)
	}
	for _, family := range families {
		prefix := stack.Cell.Prefix(family)
		for _, rest := range []string{
			"", "." + victim, "." + victim + "." + s.workspaces[0].ID,
			"." + victim + ".deployment.a.b", "." + victim + ".resync", "." + victim + ".config",
			".state.observed." + victim + ".x", ".state.desired." + victim + ".x", ".agent." + victim,
			".user.1", "." + strconv.FormatInt(s.workspaces[0].ProjectID, 10) + "." + s.workspaces[0].ID + ".created",
		} {
			all = append(all, prefix+rest)
		}
	}
	// Agent ids that begin or end like the attacker's, or are the same number spelled differently.
	own := strconv.FormatInt(s.attacker.AgentID, 10)
	for _, agent := range []string{
		own + "0", "0" + own, "+" + own, own + "%20", own[:len(own)-1] + "0" + own, "-" + own, "%",
	} {
		all = append(
			all,
			stack.Cell.Prefix(topology.FamilyObserved)+"."+agent+".resync",
			stack.Cell.Prefix(topology.FamilyApplied)+"."+agent+".w",
		)
	}
	// The attacker's own subjects in families that it must not write.
	for _, family := range []string{topology.FamilyDesired, topology.FamilyDesiredLog, topology.FamilyControl} {
		all = append(
			all,
			stack.Cell.Prefix(family)+"."+own+"."+s.workspaces[0].ID,
			stack.Cell.Prefix(family)+"."+own+".config",
		)
	}
	all = append(
		all,
		"lockstep.other.observed."+own+".resync",
		strings.ToUpper(stack.Cell.ObservedResync(s.attacker.AgentID)),
	)
	slices.Sort(all)
	return slices.Compact(all)
}

// services returns the subjects that services subscribe to.
func services(agent int64) []string {
	return []string{
		stack.Cell.All(
			topology.FamilySecret,
		),
		stack.Cell.Prefix(topology.FamilySecret) + ".*.*",
		stack.Cell.Secret(agent, "*"),
		"$SYS.REQ.USER.AUTH",
		"$JS.API.>",
		"$JS.API.CONSUMER.MSG.NEXT.DESIRED.*",
		"$SYS.REQ.>",
	}
}

func wildcards(agent int64) []string {
	victim := strconv.FormatInt(agent, 10)
	return []string{
		">",
		"*",
		"*.>",
		"lockstep.>",
		"lockstep.*.*.>",
		"lockstep.local.>",
		"lockstep.local.*." + victim + ".>",
		"lockstep.local.observed.>",
		"lockstep.local.desired.>",
		"lockstep.local.desired." + victim + ".*",
		"lockstep.local.dead.>",
		"_INBOX.>",
		"_INBOX_" + victim + ".>",
		"_INBOX_*.>",
		"_INBOX_state.>",
		"_R_.>",
		"_GR_.>",
		"$JS.>",
		"$JS.ACK.>",
		"$JS.ACK.DESIRED.*.>",
		"$JS.FC.>",
		"$JS.EVENT.>",
		"$SYS.>",
		"$KV.>",
		"$O.>",
		"$SRV.>",
	}
}

func serverSubjects() []string {
	return []string{
		"$SYS.REQ.USER.AUTH",
		"$SYS.REQ.USER.INFO",
		"$SYS.REQ.SERVER.PING",
		"$SYS.REQ.SERVER.PING.CONNZ",
		"$SYS.REQ.SERVER.PING.KICK",
		"$SYS.REQ.SERVER.x.KICK",
		"$SYS.REQ.SERVER.x.RELOAD",
		"$SYS.REQ.SERVER.x.LDM",
		"$SYS.REQ.ACCOUNT.AGENTS.CONNZ",
		"$SYS.REQ.ACCOUNT.CONTROL.SUBSZ",
		"$SYS.REQ.CLAIMS.UPDATE",
		"$SYS.REQ.CLAIMS.DELETE",
		"$SYS.ACCOUNT.CONTROL.CONNECT",
		"$SYS._INBOX.x",
		"$KV.bucket.key",
		"$O.bucket.C.x",
		"$O.bucket.M.x",
		"$MQTT.sess.x",
		"$SRV.PING",
		"$SRV.INFO.state",
		"$NRG.V.x",
		"$JSC.CI.x",
		"$JSC.R.x",
		"$JSC.ARA",
		"$GNR.x",
		"_R_.x",
		"_R_.x.y.z",
		"_GR_.x.y.z",
		"$GR.x.y",
		"$LDS.x",
		"$JS.FC.DESIRED.x.y",
		"$JS.M.x",
		"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.DESIRED.x",
		"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.DESIRED.x",
	}
}

// inboxes returns inboxes of others that the attacker can name.
func (s *isolationScenario) inboxes() []string {
	victim := strconv.FormatInt(s.victim.AgentID, 10)
	return []string{
		"_INBOX_" + victim + "." + guessedInbox + ".x",
		"_INBOX_state." + guessedInbox + ".x",
		"_INBOX_operator." + guessedInbox + ".x",
		"_INBOX_callout." + guessedInbox + ".x",
		"_INBOX_sys." + guessedInbox + ".x",
		"_INBOX." + guessedInbox + ".x",
		"_INBOX_" + strconv.FormatInt(s.bystander, 10) + "." + guessedInbox + ".x",
		"_INBOX_" + strconv.FormatInt(s.attacker.AgentID, 10) + "0." + guessedInbox + ".x",
	}
}

// acks returns acknowledgement subjects of an agent's consumers.
func (s *isolationScenario) acks(agent int64) []string {
	var all []string
	for _, consumer := range topology.AgentConsumers(stack.Cell, agent) {
		for sequence := range 5 {
			all = append(
				all,
				fmt.Sprintf(
					"$JS.ACK.%s.%s.1.%d.%d.%d.0",
					consumer.Stream,
					consumer.Config.Durable,
					sequence+1,
					sequence+1,
					time.Now().UnixNano(),
				),
			)
		}
	}
	return all
}

// replies returns reply subjects to which an attacker redirects answers of the server: streams,
// APIs and inboxes.
func (s *isolationScenario) replies() []string {
	all := slices.Concat(
		s.subjects(),
		s.inboxesElsewhere(),
		s.acks(s.victim.AgentID),
		serverSubjects(),
		services(s.victim.AgentID)[3:4],
	)
	for _, request := range s.apiRequests() {
		for _, subject := range request.subjects {
			if !strings.Contains(subject, "CONSUMER.INFO.") ||
				strings.Contains(subject, strconv.FormatInt(s.victim.AgentID, 10)) {
				all = append(all, subject)
			}
		}
	}
	own := strconv.FormatInt(s.attacker.AgentID, 10)
	all = append(
		all,
		stack.Cell.Desired(s.attacker.AgentID, s.workspaces[0].ID),
		"lockstep.local.control."+own+".config",
		stack.Cell.Secret(s.victim.AgentID, s.workspaces[0].ID),
	)
	return slices.DeleteFunc(all, func(subject string) bool { return strings.ContainsAny(subject, "*>") })
}

// inboxesElsewhere returns the inboxes of other accounts. Within one account, someone who knows an
// inbox could be sent the attacker's own answers.
func (s *isolationScenario) inboxesElsewhere() []string {
	return slices.DeleteFunc(s.inboxes(), func(inbox string) bool {
		return strings.HasPrefix(inbox, "_INBOX_"+strconv.FormatInt(s.victim.AgentID, 10))
	})
}

// harmfulHeader is a header that asks the server for something special.
type harmfulHeader struct {
	name   string
	header nats.Header
}

func harmfulHeaders(s *isolationScenario) []harmfulHeader {
	of := func(name string, pairs ...string) harmfulHeader {
		header := nats.Header{}
		for i := 0; i < len(pairs); i += 2 {
			header.Set(pairs[i], pairs[i+1])
		}
		return harmfulHeader{name, header}
	}
	desired := stack.Cell.Desired(s.victim.AgentID, s.workspaces[0].ID)
	all := []harmfulHeader{
		of(
			"a roll-up of everything",
			server.JSMsgRollup,
			server.JSMsgRollupAll,
		),
		of("a roll-up of the subject", server.JSMsgRollup, server.JSMsgRollupSubject),
		of("a time to live", server.JSMessageTTL, "1s"),
		of("a counter", server.JSMessageIncr, "1"),
		of("a batch", server.JSBatchId, attackName, server.JSBatchSeq, "1", server.JSBatchCommit, "1"),
		of(
			"a schedule for another's subject",
			server.JSSchedulePattern,
			"@at 2000-01-01T00:00:00Z",
			server.JSScheduleTarget,
			desired,
		),
		of(
			"a schedule that repeats",
			server.JSSchedulePattern,
			"@every 1s",
			server.JSScheduleTarget,
			desired,
			server.JSScheduleTTL,
			"1s",
		),
		of("another stream expected", server.JSExpectedStream, topology.StreamDesired),
		of(
			"a sequence expected",
			server.JSExpectedLastSeq,
			"1",
			server.JSExpectedLastSubjSeq,
			"1",
			server.JSExpectedLastSubjSeqSubj,
			desired,
		),
		of(
			"an id expected",
			server.JSExpectedLastMsgId,
			attackName,
		),
		of("a source", server.JSStreamSource, topology.StreamDesired+" 1"),
		of("another's account", server.ClientInfoHdr, `{"acc":"CONTROL","svc":"CONTROL","user":"state"}`),
		of(
			"a trace to another's subject",
			server.MsgTraceDest,
			desired,
		),
		of("a trace to an inbox", server.MsgTraceDest, "_INBOX_state."+guessedInbox+".trace", server.MsgTraceOnly, "true"),
		of(
			"a copy's mark",
			"Nats-Stream",
			topology.StreamDesired,
			"Nats-Subject",
			desired,
			"Nats-Sequence",
			"1",
			"Nats-Last-Sequence",
			"1",
		),
	}
	for _, guess := range s.guessedIDs() {
		all = append(all, of("the message id "+guess, server.JSMsgId, guess))
	}
	return all
}

// guessedIDs returns message ids that others could be about to use.
func (s *isolationScenario) guessedIDs() []string {
	w := s.workspaces[0]
	next := strconv.FormatInt(w.Get().GetDesiredRevision()+1, 10)
	return []string{w.ID + "/" + next, w.ID + "/desired/" + next, "1"}
}

// apiRequest is a JetStream request that does harm if it is obeyed.
type apiRequest struct {
	name     string
	subjects []string
	body     []byte
}

func (s *isolationScenario) apiRequests() []apiRequest {
	var all []apiRequest
	body := func(v any) []byte {
		raw, err := json.Marshal(v)
		require.NoError(s.T, err)
		return raw
	}
	loot := "_INBOX_" + strconv.FormatInt(s.attacker.AgentID, 10) + ".loot.api"
	var own, others []string
	for _, agent := range []int64{s.victim.AgentID, s.bystander, s.attacker.AgentID} {
		for _, c := range []string{topology.DispatcherConsumer(agent), topology.WatcherConsumer(agent)} {
			if agent == s.attacker.AgentID {
				own = append(own, c)
			} else {
				others = append(others, c)
			}
		}
	}
	onStreams := func(name, format string, data any) {
		r := apiRequest{name: name, body: body(data)}
		for _, stream := range topology.Streams() {
			r.subjects = append(r.subjects, fmt.Sprintf(format, stream.Name))
		}
		all = append(all, r)
	}
	onConsumers := func(name, format string, data any) {
		r := apiRequest{name: name, body: body(data)}
		for _, stream := range topology.Streams() {
			for _, consumer := range slices.Concat(own, others, []string{attackName}) {
				r.subjects = append(r.subjects, fmt.Sprintf(format, stream.Name, consumer))
			}
		}
		all = append(all, r)
	}
	type object = map[string]any
	all = append(all, apiRequest{
		"tell about the account, or change the cluster",
		[]string{
			server.JSApiAccountInfo,
			server.JSApiStreams,
			server.JSApiStreamList,
			server.JSApiLeaderStepDown,
			server.JSApiRemoveServer,
			server.JSApiEvacuateServer,
			server.JSApiMetaRescue,
			fmt.Sprintf(server.JSApiAccountPurgeT, "CONTROL"),
			fmt.Sprintf(server.JSApiServerStreamMoveT, "CONTROL", "DESIRED"),
			fmt.Sprintf(server.JSApiServerStreamCancelMoveT, "CONTROL", "DESIRED"),
		},
		nil,
	})
	all = append(
		all,
		apiRequest{
			"make a stream of its own",
			[]string{fmt.Sprintf(server.JSApiStreamCreateT, attackName)},
			body(
				object{
					"name":     attackName,
					"subjects": []string{attackName + ".>"},
					"sources":  []object{{"name": topology.StreamDesired}},
				},
			),
		},
	)
	onStreams(
		"make a stream again",
		server.JSApiStreamCreateT,
		object{"name": topology.StreamDesired, "subjects": []string{attackName}},
	)
	onStreams(
		"change a stream",
		server.JSApiStreamUpdateT,
		object{
			"name":      topology.StreamDesired,
			"subjects":  []string{attackName},
			"max_msgs":  1,
			"republish": object{"src": ">", "dest": loot},
		},
	)
	onStreams("describe a stream", server.JSApiStreamInfoT, object{"subjects_filter": ">", "deleted_details": true})
	onStreams("delete a stream", server.JSApiStreamDeleteT, nil)
	onStreams("purge a stream", server.JSApiStreamPurgeT, object{"filter": stack.Cell.DesiredAgent(s.victim.AgentID)})
	onStreams("purge all of a stream", server.JSApiStreamPurgeT, nil)
	onStreams(
		"read a message",
		server.JSApiMsgGetT,
		object{"last_by_subj": stack.Cell.Desired(s.victim.AgentID, s.workspaces[0].ID)},
	)
	onStreams(
		"read a message directly",
		server.JSDirectMsgGetT,
		object{"seq": 1, "batch": 100, "multi_last": []string{">"}},
	)
	onStreams("delete a message", server.JSApiMsgDeleteT, object{"seq": 1, "no_erase": false})
	onStreams("take a snapshot", server.JSApiStreamSnapshotT, object{"deliver_subject": loot})
	onStreams(
		"restore a snapshot",
		server.JSApiStreamRestoreT,
		object{"config": object{"name": topology.StreamDesired}, "state": object{"messages": 0}},
	)
	onStreams("move a stream", server.JSApiStreamLeaderStepDownT, nil)
	onStreams("take a stream from a server", server.JSApiStreamRemovePeerT, object{"peer": "x"})
	onStreams("empty a server", server.JSApiStreamEvacuatePeerT, object{"peer": "x"})
	onStreams("stop a move", server.JSApiStreamCancelMoveT, nil)
	onStreams("list consumers", server.JSApiConsumersT, nil)
	onStreams("describe consumers", server.JSApiConsumerListT, nil)
	consumer := object{
		"stream_name": topology.StreamDesired,
		"config": object{
			"name":            attackName,
			"durable_name":    attackName,
			"deliver_subject": loot,
			"ack_policy":      "none",
			"filter_subject":  stack.Cell.All(topology.FamilyDesired),
		},
	}
	onStreams("make a consumer", server.JSApiConsumerCreateT, consumer)
	onConsumers("make a durable consumer", server.JSApiDurableCreateT, consumer)
	onConsumers("make a named consumer", "$JS.API.CONSUMER.CREATE.%s.%s", consumer)
	onConsumers(
		"make a filtered consumer",
		"$JS.API.CONSUMER.CREATE.%s.%s."+stack.Cell.All(topology.FamilyDesired),
		consumer,
	)
	onConsumers("describe a consumer", server.JSApiConsumerInfoT, nil)
	onConsumers("delete a consumer", server.JSApiConsumerDeleteT, nil)
	onConsumers("pause a consumer", server.JSApiConsumerPauseT, object{"pause_until": time.Now().Add(time.Hour)})
	onConsumers("take from a consumer", server.JSApiRequestNextT, object{"batch": 100, "no_wait": true})
	onConsumers("reset a consumer", server.JSApiConsumerResetT, object{"seq": 1})
	onConsumers("unpin a consumer", server.JSApiConsumerUnpinT, object{"group": "x"})
	onConsumers("move a consumer", server.JSApiConsumerLeaderStepDownT, nil)
	onConsumers("take a consumer from a server", server.JSApiConsumerRemovePeerT, object{"peer": "x"})
	onConsumers("empty a server of a consumer", server.JSApiConsumerEvacuatePeerT, object{"peer": "x"})
	onConsumers("stop a consumer's flow", "$JS.FC.%s.%s.x", nil)
	for _, stream := range topology.Streams() {
		all = append(all, apiRequest{
			"read the last of a subject in " + stream.Name,
			[]string{
				fmt.Sprintf(
					server.JSDirectGetLastBySubjectT,
					stream.Name,
					stack.Cell.Desired(s.victim.AgentID, s.workspaces[0].ID),
				),
			},
			nil,
		})
	}
	return all
}
