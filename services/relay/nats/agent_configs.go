package nats

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/lastvalue"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// AgentConfigs has the configuration of every agent, from the stream CONTROL. It may be used by many goroutines.
type AgentConfigs struct {
	reader *lastvalue.Reader
	logger *slog.Logger

	mu     sync.Mutex
	agents map[int64]*agentConfig
}

type agentConfig struct {
	line     []byte
	revision int64
	changed  chan struct{}
}

// NewAgentConfigs makes an empty copy; Run fills it.
func NewAgentConfigs(js jetstream.JetStream, cell topology.Cell, logger *slog.Logger) *AgentConfigs {
	c := &AgentConfigs{logger: logger, agents: map[int64]*agentConfig{}}
	c.reader = lastvalue.NewReader(lastvalue.Config{
		JetStream: js, Stream: topology.StreamControl, Subjects: cell.ControlConfigs(), Live: cell.ControlConfigsLive(),
		Handler: configLoader{c}, Logger: logger,
	})
	return c
}

// Run keeps the copy until ctx is done, and calls ready once it is loaded for the first time.
func (c *AgentConfigs) Run(ctx context.Context, ready func()) { c.reader.Run(ctx, ready) }

// Check is a health check, see [lastvalue.Reader.Check].
func (c *AgentConfigs) Check(ctx context.Context) error {
	return c.reader.Check(ctx)
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
		found = &agentConfig{revision: lastvalue.NoRevision, changed: make(chan struct{})}
		c.agents[agent] = found
	}
	return found
}

// configLoader applies what the reader reads.
type configLoader struct{ *AgentConfigs }

// Begin implements lastvalue.Handler. Revisions of another stream do not compare.
func (l configLoader) Begin(replaced bool) {
	if !replaced {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, known := range l.agents {
		known.revision = lastvalue.NoRevision
	}
}

// Apply implements lastvalue.Handler.
func (l configLoader) Apply(ctx context.Context, m lastvalue.Message) {
	if err := l.apply(m.Subject, m.Revision(), m.Data); err != nil {
		l.logger.WarnContext(ctx, "ignored an invalid configuration of an agent", slog.String(logkey.Subject, m.Subject),
			logkey.Error(err))
	}
}

// Loaded implements lastvalue.Handler.
func (l configLoader) Loaded() {}

// apply keeps the configuration unless a higher revision is known.
func (c *AgentConfigs) apply(subject string, revision int64, data []byte) error {
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
	if revision < known.revision && revision != lastvalue.NoRevision {
		return nil
	}
	known.revision = max(known.revision, revision)
	if bytes.Equal(known.line, line) {
		return nil
	}
	known.line = line
	close(known.changed)
	known.changed = make(chan struct{})
	return nil
}
