package natsauth

import "time"

// pullThreshold is how long the server keeps the way back for a pull request after the last message on it.
// It must exceed the longest silence of a pull: nats.go asks for 30 s with a heartbeat every 15 s at most.
// Longer only costs memory, because each pull request leaves one entry until then.
const pullThreshold = 2 * time.Minute

// An account without JetStream still gets an import of "$JS.API.>" from the system account, which answers every
// request with an error, racing with the imports below. The server leaves it out of accounts that import
// accountInfoSubject from elsewhere. Agents have no use for it, so theirs leads to a subject that nobody serves.
const (
	accountInfoSubject = "$JS.API.INFO"
	nowhereToken       = "nowhere"
)

// service is one subject that AccountControl offers to AccountAgents. Offers are services, never streams:
// a stream import would deliver every agent's messages into the one account that all agents share.
type service struct {
	subject string
	// stream says that one request has many answers; without it the server forgets the way back after the first.
	stream bool
}

// agentReach names, for one agent or for all ("*"), the subjects it reaches across the border.
// Exports use it with a wildcard, permissions with the agent's id: what is not exported cannot be permitted,
// and what is permitted is always exported.
func agentReach(cell, agent string) []service {
	reach := []service{
		{subject: cellSubject(cell, "observed."+agent+".>")},
		{subject: cellSubject(cell, "applied."+agent+".*")},
		{subject: cellSubject(cell, "secret."+agent+".*")},
	}

	for _, consumer := range agentConsumers(agent) {
		pair := consumer.stream + "." + consumer.name
		reach = append(reach,
			service{subject: "$JS.API.CONSUMER.MSG.NEXT." + pair, stream: true},
			service{subject: "$JS.API.CONSUMER.INFO." + pair},
			service{subject: "$JS.API.CONSUMER.RESET." + pair},
			service{subject: "$JS.ACK." + pair + ".>"},
		)
	}

	return reach
}

type streamConsumer struct {
	stream string
	name   string
}

// agentConsumers lists the pre-created durable consumers of one agent. A wildcard cannot stand inside a token,
// so for all agents it is the whole consumer token, once per stream.
func agentConsumers(agent string) []streamConsumer {
	if agent == "*" {
		return []streamConsumer{{streamDesired, "*"}, {streamControl, "*"}}
	}

	return []streamConsumer{
		{streamDesired, consumerDispatcher + agent},
		{streamControl, consumerDispatcher + agent},
		{streamControl, consumerWatcher + agent},
	}
}
