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

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// heartbeat is how soon a reader notices that nothing can come any more.
const heartbeat = 5 * time.Second

// Configurations is what every agent is configured with, followed on the stream CONTROL. It is made by [NewConfigurations].
type Configurations struct {
	js     jetstream.JetStream
	cell   topology.Cell
	logger *slog.Logger

	mu     sync.Mutex
	agents map[int64]*configuration
}

type configuration struct {
	line    []byte
	changed chan struct{}
}

// NewConfigurations knows nothing until Run runs.
func NewConfigurations(js jetstream.JetStream, cell topology.Cell, logger *slog.Logger) *Configurations {
	return &Configurations{js: js, cell: cell, logger: logger, agents: map[int64]*configuration{}}
}

// Configuration of an agent as a line of JSON, empty where it is not known, and a channel that is closed when there is another.
func (c *Configurations) Configuration(agent int64) ([]byte, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.of(agent)
	return found.line, found.changed
}

func (c *Configurations) of(agent int64) *configuration {
	found := c.agents[agent]
	if found == nil {
		found = &configuration{changed: make(chan struct{})}
		c.agents[agent] = found
	}
	return found
}

// Run follows the stream until ctx is done. An error is of NATS; it may then be called again. What was known counts meanwhile. ready is called once all is known.
func (c *Configurations) Run(ctx context.Context, ready func()) error {
	opening, opened := context.WithTimeout(ctx, answerTimeout)
	defer opened()
	consumer, err := c.js.OrderedConsumer(opening, topology.StreamControl, jetstream.OrderedConsumerConfig{
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
		case errors.Is(err, jetstream.ErrNoHeartbeat): // the consumer is made anew by itself
			continue
		case err != nil:
			return fmt.Errorf("read stream %s: %w", topology.StreamControl, err)
		}
		if err := c.take(m.Subject(), m.Data()); err != nil {
			c.logger.WarnContext(ctx, "the configuration of an agent is not understood, and not followed", slog.String("subject", m.Subject()), slog.Any("error", err))
		}
		if meta, err := m.Metadata(); err == nil && meta.NumPending == 0 {
			ready()
		}
	}
}

func (c *Configurations) take(subject string, data []byte) error {
	parsed, err := topology.Parse(subject)
	if err != nil {
		return fmt.Errorf("its subject: %w", err)
	}
	agent, err := parsed.Agent()
	if err != nil {
		return fmt.Errorf("its subject: %w", err)
	}
	var said events.AgentConfig
	if err := json.Unmarshal(data, &said); err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	line, err := json.Marshal(said)
	if err != nil {
		return fmt.Errorf("write it: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.of(agent)
	known.line = line
	close(known.changed)
	known.changed = make(chan struct{})
	return nil
}
