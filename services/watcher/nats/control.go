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
	// progressInterval is between progress reports of a message. The consumer redelivers 10 s after the last one.
	progressInterval = 3 * time.Second
	minDelay         = 100 * time.Millisecond
	maxDelay         = 10 * time.Second
)

// Handler receives an agent's configuration and requests. Each method returns a channel that is closed
// when the message has taken effect, nil if it already has. Calls come one at a time.
type Handler interface {
	// Configure receives the agent's configuration.
	Configure(ctx context.Context, cfg events.AgentConfig) <-chan struct{}
	// Resync receives a request for a full resync.
	Resync(ctx context.Context, request events.ResyncRequested) <-chan struct{}
}

// Control reads the configuration and requests of one agent's watcher.
type Control struct {
	conn     *nats.Conn
	js       jetstream.JetStream
	consumer string
	logger   *slog.Logger

	once sync.Once
	read chan struct{} // closed after the first read
}

// NewControl makes the reader of an agent's consumer, which exists since the agent was registered.
func NewControl(conn *nats.Conn, agent int64, logger *slog.Logger) (*Control, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return &Control{conn: conn, js: js, consumer: topology.WatcherConsumer(agent), logger: logger, read: make(chan struct{})}, nil
}

// Read is closed when the handler has received all messages published before Run.
func (c *Control) Read() <-chan struct{} { return c.read }

// Run reads until ctx is done. It retries while NATS or the consumer is unavailable. Call it once.
func (c *Control) Run(ctx context.Context, to Handler) {
	var settling sync.WaitGroup
	defer settling.Wait()
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval = minDelay, maxDelay
	reset := false
	for ctx.Err() == nil {
		err := c.consume(ctx, to, &reset, &settling, delays.Reset)
		if ctx.Err() != nil {
			return
		}
		delay := delays.NextBackOff()
		c.logger.DebugContext(ctx, "read of the agent's configuration failed; retrying",
			slog.String("consumer", c.consumer), slog.String("error", err.Error()), slog.Duration("delay", delay))
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
	}
}

func (c *Control) consume(
	ctx context.Context, to Handler, reset *bool, settling *sync.WaitGroup, succeeded func(),
) error {
	if !*reset {
		// This watcher needs what an earlier one acknowledged. The agent may reset its own consumer.
		if _, err := c.js.ResetConsumerToSequence(ctx, topology.StreamControl, c.consumer, 1); err != nil {
			return fmt.Errorf("reset consumer %s: %w", c.consumer, err)
		}
		*reset = true
	}
	consumer, err := c.js.Consumer(ctx, topology.StreamControl, c.consumer)
	if err != nil {
		return fmt.Errorf("consumer %s: %w", c.consumer, err)
	}
	succeeded()
	if info := consumer.CachedInfo(); info.NumPending == 0 && info.NumAckPending == 0 {
		c.allRead()
	}
	reader := natsauth.PullReader{
		Conn: c.conn, Stream: topology.StreamControl, Consumer: c.consumer, Logger: c.logger,
		Handle: func(msg jetstream.Msg) { c.handle(ctx, msg, to, settling) },
	}
	return reader.Run(ctx)
}

func (c *Control) handle(ctx context.Context, msg jetstream.Msg, to Handler, settling *sync.WaitGroup) {
	effect, err := dispatch(ctx, msg, to)
	if err != nil {
		c.logger.ErrorContext(ctx, "dropped an invalid message to this agent",
			slog.String("subject", msg.Subject()), slog.String("error", err.Error()))
		err = msg.TermWithReason(err.Error())
	} else {
		settling.Go(func() { c.settle(ctx, msg, effect) })
	}
	if err != nil {
		c.logger.WarnContext(ctx, "acknowledgement failed", slog.String("error", err.Error()))
	}
	if metadata, err := msg.Metadata(); err == nil && metadata.NumPending == 0 {
		c.allRead()
	}
}

func (c *Control) allRead() { c.once.Do(func() { close(c.read) }) }

func dispatch(ctx context.Context, msg jetstream.Msg, to Handler) (<-chan struct{}, error) {
	e, err := event.Decode(msg.Headers(), msg.Data())
	if err != nil {
		return nil, err
	}
	if e.Type() != events.TypeAgentConfig && e.Type() != events.TypeResyncRequested {
		return nil, nil //nolint:nilnil // for another component of the agent
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

// settle acknowledges a message once it has taken effect, and prevents its redelivery until then.
func (c *Control) settle(ctx context.Context, msg jetstream.Msg, effect <-chan struct{}) {
	if effect != nil {
		progress := time.NewTicker(progressInterval)
		defer progress.Stop()
		for waiting := true; waiting; {
			select {
			case <-effect:
				waiting = false
			case <-progress.C:
				if err := msg.InProgress(); err != nil {
					c.logger.DebugContext(ctx, "progress report failed", slog.String("error", err.Error()))
				}
			case <-ctx.Done():
				return // the next leader receives it again
			}
		}
	}
	if err := msg.Ack(); err != nil {
		c.logger.DebugContext(ctx, "acknowledgement failed; the message will be redelivered", slog.String("subject", msg.Subject()), slog.String("error", err.Error()))
	}
}
