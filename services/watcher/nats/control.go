package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

const (
	// What has been taken and has not had its effect is claimed this often; the consumer redelivers after 10 s without.
	claimInterval = 3 * time.Second
	minDelay      = 100 * time.Millisecond
	maxDelay      = 10 * time.Second
)

// Directives takes what the agent is told. Each method returns a channel that is closed when the directive has had its effect, nil
// when it has had it already. Calls come one at a time.
type Directives interface {
	// Configure is told the agent's configuration.
	Configure(ctx context.Context, cfg events.AgentConfig) <-chan struct{}
	// Resync is asked for a full resync that answers the nonce.
	Resync(ctx context.Context, request events.ResyncRequested) <-chan struct{}
}

// Control reads what one agent's watcher is told.
type Control struct {
	conn     *nats.Conn
	js       jetstream.JetStream
	consumer string
	logger   *slog.Logger

	once  sync.Once
	heard chan struct{}
}

// NewControl makes the reader of an agent's consumer, which must have been made with the agent.
func NewControl(conn *nats.Conn, agent int64, logger *slog.Logger) (*Control, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return &Control{conn: conn, js: js, consumer: topology.WatcherConsumer(agent), logger: logger, heard: make(chan struct{})}, nil
}

// Heard is closed when everything that was said before Run has been handed over.
func (c *Control) Heard() <-chan struct{} { return c.heard }

// Run reads until ctx is done. It waits for ever for NATS and for the consumer. It is for one run.
func (c *Control) Run(ctx context.Context, to Directives) {
	var settling sync.WaitGroup
	defer settling.Wait()
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval = minDelay, maxDelay
	reset := false
	for ctx.Err() == nil {
		err := c.read(ctx, to, &reset, &settling, delays.Reset)
		if ctx.Err() != nil {
			return
		}
		delay := delays.NextBackOff()
		c.logger.DebugContext(ctx, "cannot read the agent's configuration, trying on",
			slog.String("consumer", c.consumer), slog.String("error", err.Error()), slog.Duration("delay", delay))
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
	}
}

func (c *Control) read(ctx context.Context, to Directives, reset *bool, settling *sync.WaitGroup, works func()) error {
	if !*reset {
		// What an earlier watcher acknowledged is news to this one. The consumer is made with the agent: the first position is its own.
		if _, err := c.js.ResetConsumerToSequence(ctx, topology.StreamControl, c.consumer, 1); err != nil {
			return fmt.Errorf("reset consumer %s: %w", c.consumer, err)
		}
		*reset = true
	}
	consumer, err := c.js.Consumer(ctx, topology.StreamControl, c.consumer)
	if err != nil {
		return fmt.Errorf("consumer %s: %w", c.consumer, err)
	}
	works()
	if info := consumer.CachedInfo(); info.NumPending == 0 && info.NumAckPending == 0 {
		c.allHeard()
	}
	intake := natsauth.PullReader{
		Conn: c.conn, Stream: topology.StreamControl, Consumer: c.consumer, Logger: c.logger,
		Handle: func(msg jetstream.Msg) { c.handle(ctx, msg, to, settling) },
	}
	return intake.Run(ctx)
}

func (c *Control) handle(ctx context.Context, msg jetstream.Msg, to Directives, settling *sync.WaitGroup) {
	effect, err := dispatch(ctx, msg, to)
	if err != nil {
		c.logger.ErrorContext(ctx, "a message to this agent cannot be understood and is dropped",
			slog.String("subject", msg.Subject()), slog.String("error", err.Error()))
		err = msg.TermWithReason(err.Error())
	} else {
		settling.Go(func() { c.settle(ctx, msg, effect) })
	}
	if err != nil {
		c.logger.WarnContext(ctx, "cannot answer the consumer", slog.String("error", err.Error()))
	}
	if metadata, err := msg.Metadata(); err == nil && metadata.NumPending == 0 {
		c.allHeard()
	}
}

func (c *Control) allHeard() { c.once.Do(func() { close(c.heard) }) }

func dispatch(ctx context.Context, msg jetstream.Msg, to Directives) (<-chan struct{}, error) {
	e, err := event.Decode(msg.Headers(), msg.Data())
	if err != nil {
		return nil, err
	}
	if e.Type() != events.TypeAgentConfig && e.Type() != events.TypeResyncRequested {
		return nil, nil //nolint:nilnil // what a newer control plane says on these subjects to others is none of our business
	}
	if err := events.Validate(e.Type(), e.Data()); err != nil {
		return nil, fmt.Errorf("event %s: %w", e.ID(), err)
	}
	if e.Type() == events.TypeAgentConfig {
		var cfg events.AgentConfig
		if err := json.Unmarshal(e.Data(), &cfg); err != nil {
			return nil, fmt.Errorf("event %s: %w", e.ID(), err)
		}
		return to.Configure(ctx, cfg), nil
	}
	var request events.ResyncRequested
	if err := json.Unmarshal(e.Data(), &request); err != nil {
		return nil, fmt.Errorf("event %s: %w", e.ID(), err)
	}
	return to.Resync(ctx, request), nil
}

// settle acknowledges a message once it has had its effect, and keeps it from being delivered again until then.
func (c *Control) settle(ctx context.Context, msg jetstream.Msg, effect <-chan struct{}) {
	if effect != nil {
		claim := time.NewTicker(claimInterval)
		defer claim.Stop()
		for waiting := true; waiting; {
			select {
			case <-effect:
				waiting = false
			case <-claim.C:
				if err := msg.InProgress(); err != nil {
					c.logger.DebugContext(ctx, "cannot keep a message from redelivery", slog.String("error", err.Error()))
				}
			case <-ctx.Done():
				return // the next leader is told again
			}
		}
	}
	if err := msg.Ack(); err != nil {
		c.logger.DebugContext(ctx, "cannot acknowledge, it will be told again", slog.String("subject", msg.Subject()), slog.String("error", err.Error()))
	}
}
