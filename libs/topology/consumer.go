package topology

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// AgentConsumer is a durable pull consumer made for an agent in advance, since agents may not make
// any.
type AgentConsumer struct {
	Stream string
	Config jetstream.ConsumerConfig
}

// DispatcherConsumer is the name of the consumers an agent's dispatcher reads DESIRED and CONTROL
// with.
func DispatcherConsumer(agent int64) string { return "dispatcher-" + strconv.FormatInt(agent, 10) }

// WatcherConsumer is the name of the consumer an agent's watcher reads CONTROL with.
func WatcherConsumer(agent int64) string { return "watcher-" + strconv.FormatInt(agent, 10) }

// AgentConsumers returns every consumer an agent needs: each delivers all and is acknowledged
// explicitly.
func AgentConsumers(cell Cell, agent int64) []AgentConsumer {
	config := func(name, filter string) jetstream.ConsumerConfig {
		return jetstream.ConsumerConfig{
			Durable:       name,
			FilterSubject: filter,
			DeliverPolicy: jetstream.DeliverAllPolicy,
			AckPolicy:     jetstream.AckExplicitPolicy,
			// Agents acknowledge when they have taken a message, so this is how late one comes that
			// a broken connection lost.
			AckWait:       10 * time.Second,
			MaxAckPending: 1000,
			Replicas:      1,
		}
	}
	return []AgentConsumer{
		{Stream: StreamDesired, Config: config(DispatcherConsumer(agent), cell.DesiredAgent(agent))},
		{Stream: StreamControl, Config: config(DispatcherConsumer(agent), cell.ControlAgent(agent))},
		{Stream: StreamControl, Config: config(WatcherConsumer(agent), cell.ControlAgent(agent))},
	}
}

// EnsureAgent makes an agent's consumers where they are missing. It changes none that is there.
func EnsureAgent(ctx context.Context, js jetstream.JetStream, cell Cell, agent int64) error {
	for _, c := range AgentConsumers(cell, agent) {
		if _, err := js.CreateOrUpdateConsumer(ctx, c.Stream, c.Config); err != nil {
			return fmt.Errorf("consumer %s on stream %s: %w", c.Config.Durable, c.Stream, err)
		}
	}
	return nil
}
