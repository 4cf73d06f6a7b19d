package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// heartbeat is the idle heartbeat of the consumer.
const heartbeat = 5 * time.Second

// AgentConfigs has the configuration of every agent, from the stream CONTROL. It may be used by many goroutines.
type AgentConfigs struct {
	js     jetstream.JetStream
	cell   topology.Cell
	logger *slog.Logger

	mu     sync.Mutex
	agents map[int64]*agentConfig
}

type agentConfig struct {
	line    []byte
	changed chan struct{}
}

// NewAgentConfigs makes an empty copy; Run fills it.
func NewAgentConfigs(js jetstream.JetStream, cell topology.Cell, logger *slog.Logger) *AgentConfigs {
	return &AgentConfigs{js: js, cell: cell, logger: logger, agents: map[int64]*agentConfig{}}
}

// AgentConfig returns the configuration of an agent as a line of JSON, empty if it has none, and a channel that is
// closed when it changes.
func (c *AgentConfigs) AgentConfig(agent int64) ([]byte, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.of(agent)
	return found.line, found.changed
}

func (c *AgentConfigs) of(agent int64) *agentConfig {
	found := c.agents[agent]
	if found == nil {
		found = &agentConfig{changed: make(chan struct{})}
		c.agents[agent] = found
	}
	return found
}

// Run follows the stream until ctx is done. It returns errors of NATS, and may then be called again; it keeps
// what it has read. It calls ready after it has read the whole stream.
func (c *AgentConfigs) Run(ctx context.Context, ready func()) error {
	openCtx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	consumer, err := c.js.OrderedConsumer(openCtx, topology.StreamControl, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{c.cell.ControlConfigs()}, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
	})
	if err != nil {
		return fmt.Errorf("read stream %s: %w", topology.StreamControl, err)
	}
	messages, err := consumer.Messages(jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return fmt.Errorf("read stream %s: %w", topology.StreamControl, err)
	}
	defer messages.Stop()
	if consumer.CachedInfo().NumPending == 0 {
		ready()
	}
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, jetstream.ErrNoHeartbeat): // the client recreates the consumer
			continue
		case err != nil:
			return fmt.Errorf("read stream %s: %w", topology.StreamControl, err)
		}
		if err := c.handle(m.Subject(), m.Data()); err != nil {
			c.logger.WarnContext(ctx, "ignored an invalid configuration of an agent", slog.String(logkey.Subject, m.Subject()),
				logkey.Error(err))
		}
		if meta, err := m.Metadata(); err == nil && meta.NumPending == 0 {
			ready()
		}
	}
}

func (c *AgentConfigs) handle(subject string, data []byte) error {
	parsed, err := topology.Parse(subject)
	if err != nil {
		return fmt.Errorf("parse the subject: %w", err)
	}
	agent, err := parsed.Agent()
	if err != nil {
		return fmt.Errorf("parse the subject: %w", err)
	}
	var config events.AgentConfig
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	line, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.of(agent)
	known.line = line
	close(known.changed)
	known.changed = make(chan struct{})
	return nil
}
