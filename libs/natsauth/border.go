package natsauth

import (
	"strconv"
	"time"

	"lockstep.internal/libs/topology"
)

// pullThreshold is how long the server keeps the way back for a pull request after the last message
// on it. It must exceed the longest silence of a pull: nats.go asks for 30 s with a heartbeat every
// 15 s at most. Longer only costs memory, because each pull request leaves one entry until then.
const pullThreshold = time.Minute

// An account without JetStream still gets an import of "$JS.API.>" from the system account, which
// answers every request with an error, racing with the imports below. The server leaves it out of
// accounts that import accountInfoSubject from elsewhere. Agents have no use for it, so theirs
// leads to a subject that nobody serves.
const (
	accountInfoSubject = "$JS.API.INFO"
	nowhereFamily      = "nowhere"
)

// service is one subject that AccountControl exports to another account. To agents it offers
// services, never streams: a stream import would deliver every agent's messages into the one
// account that all agents share.
type service struct {
	subject string
	// manyAnswers says that one request has many answers; without it the server forgets the way
	// back after the first.
	manyAnswers bool
}

// agentReach is what one agent reaches across the border.
func agentReach(cell topology.Cell, agent int64) []service {
	reach := factReach(cell, strconv.FormatInt(agent, 10))
	for _, consumer := range topology.AgentConsumers(cell, agent) {
		reach = append(reach, consumerReach(consumer.Stream, consumer.Config.Durable)...)
	}

	return reach
}

// borderReach is what all agents together reach: [agentReach] with wildcards. A wildcard cannot
// stand for a part of a token, so it stands for any consumer of the streams that agents have
// consumers on; those who may use an export at all are told apart by their permissions.
func borderReach(cell topology.Cell) []service {
	reach := factReach(cell, "*")
	seen := make(map[string]bool)

	for _, consumer := range topology.AgentConsumers(cell, 1) {
		if !seen[consumer.Stream] {
			seen[consumer.Stream] = true
			reach = append(reach, consumerReach(consumer.Stream, "*")...)
		}
	}

	return reach
}

// subscriberReach is what one subscriber reaches across the border: its consumer, but not the
// resetting of it. With a wildcard, what all of them do.
func subscriberReach(consumer string) []service {
	pair := topology.StreamDeploys + "." + consumer

	return []service{
		{subject: "$JS.API.CONSUMER.MSG.NEXT." + pair, manyAnswers: true},
		{subject: "$JS.API.CONSUMER.INFO." + pair},
		{subject: "$JS.ACK." + pair + ".>"},
	}
}

// crossing is what an account without JetStream has of AccountControl's.
type crossing struct {
	account  Account
	services []service
	// streams are subjects that it hears, and under what subjects.
	streams map[string]string
	// outside says that its users are strangers, who are given little of the server: see
	// [readerSubscriptions] and [readerPayload].
	outside bool
}

const (
	// readerSubscriptions of one connection: more than anybody needs who has one thing to read.
	readerSubscriptions = 64
	// readerPayload is the largest message of one, in bytes: requests and acknowledgements are
	// small.
	readerPayload = 8 << 10
)

// crossings are all ways over the border.
func crossings(cell topology.Cell) []crossing {
	return []crossing{
		{account: AccountAgents, services: borderReach(cell)},
		{account: AccountSubscribers, services: subscriberReach("*"), outside: true},
		// What is heard is what the stream has taken, and it is heard under the subjects of the
		// stream.
		{
			account: AccountListeners,
			streams: map[string]string{cell.All(topology.FamilyDeployLive): cell.All(topology.FamilyDeploy)}, outside: true,
		},
	}
}

func factReach(cell topology.Cell, agent string) []service {
	return []service{
		{subject: cell.Prefix(topology.FamilyObserved) + "." + agent + ".>"},
		{subject: cell.Prefix(topology.FamilyApplied) + "." + agent + ".*"},
		{subject: cell.Prefix(topology.FamilySecret) + "." + agent + ".*"},
	}
}

func consumerReach(stream, consumer string) []service {
	pair := stream + "." + consumer

	return []service{
		{subject: "$JS.API.CONSUMER.MSG.NEXT." + pair, manyAnswers: true},
		{subject: "$JS.API.CONSUMER.INFO." + pair},
		{subject: "$JS.API.CONSUMER.RESET." + pair},
		{subject: "$JS.ACK." + pair + ".>"},
	}
}
