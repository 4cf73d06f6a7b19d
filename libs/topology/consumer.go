package topology

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// AgentConsumer is a durable pull consumer that the state service creates for an agent, because agents may not
// create consumers.
type AgentConsumer struct {
	Stream string
	Config jetstream.ConsumerConfig
}

// DispatcherConsumer is the name of the consumers an agent's dispatcher reads DESIRED and CONTROL
// with.
func DispatcherConsumer(agent int64) string { return "dispatcher-" + strconv.FormatInt(agent, 10) }

// WatcherConsumer is the name of the consumer an agent's watcher reads CONTROL with.
func WatcherConsumer(agent int64) string { return "watcher-" + strconv.FormatInt(agent, 10) }

// AgentAckWait is the deadline of an agent's acknowledgement. Agents acknowledge on receipt, or extend the deadline
// until the message has taken effect. So it is only the redelivery delay after a broken connection.
const AgentAckWait = 2 * time.Second

// AgentConsumers returns every consumer an agent needs: each delivers all and is acknowledged
// explicitly. A consumer has the replicas of its stream.
func AgentConsumers(cell Cell, agent int64) []AgentConsumer {
	config := func(name, filter string) jetstream.ConsumerConfig {
		return jetstream.ConsumerConfig{
			Durable:       name,
			FilterSubject: filter,
			DeliverPolicy: jetstream.DeliverAllPolicy,
			AckPolicy:     jetstream.AckExplicitPolicy,
			AckWait:       AgentAckWait,
			MaxAckPending: 1000,
		}
	}
	return []AgentConsumer{
		{Stream: StreamDesired, Config: config(DispatcherConsumer(agent), cell.DesiredAgent(agent))},
		{Stream: StreamControl, Config: config(DispatcherConsumer(agent), cell.ControlAgent(agent))},
		{Stream: StreamControl, Config: config(WatcherConsumer(agent), cell.ControlAgent(agent))},
	}
}

// EnsureAgent creates or updates an agent's consumers.
func EnsureAgent(ctx context.Context, js jetstream.JetStream, cell Cell, agent int64) error {
	for _, c := range AgentConsumers(cell, agent) {
		if _, err := js.CreateOrUpdateConsumer(ctx, c.Stream, c.Config); err != nil {
			return fmt.Errorf("consumer %s on stream %s: %w", c.Config.Durable, c.Stream, err)
		}
	}
	return nil
}
