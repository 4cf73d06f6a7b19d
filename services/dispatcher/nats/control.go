package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// Control reads what one agent's dispatcher is told beside desired states. All fields are required.
type Control struct {
	Conn   *nats.Conn
	Agent  int64
	Logger *slog.Logger
	// Since is when desired states began to be applied from the first on: requests from before that are answered by it.
	Since time.Time
	// Configure is told the agent's configuration, Resync that everything is to be looked at. Both must not block.
	Configure func(cfg events.AgentConfig)
	Resync    func(request events.ResyncRequested)
}

// Run begins with the first message and reads until the context is done. It waits for a consumer that is not there, which holds up nothing else.
func (c Control) Run(ctx context.Context) error {
	js, err := jetstream.New(c.Conn)
	if err != nil {
		return fmt.Errorf("read what the agent is told: %w", err)
	}
	since, err := c.reset(ctx, js)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // told to stop
		}
		return err
	}
	intake := natsauth.PullReader{
		Conn: c.Conn, Stream: topology.StreamControl, Consumer: topology.DispatcherConsumer(c.Agent), Logger: c.Logger,
		Handle: func(message jetstream.Msg) { c.handle(ctx, message, since) },
	}
	if err := intake.Run(ctx); err != nil {
		return fmt.Errorf("read what the agent is told: %w", err)
	}
	return nil
}

// reset retries until the consumer begins anew, and returns Since by the server's clock.
func (c Control) reset(ctx context.Context, js jetstream.JetStream) (time.Time, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 100 * time.Millisecond
	wait.MaxInterval = 5 * time.Second
	consumer := topology.DispatcherConsumer(c.Agent)
	since, err := backoff.Retry(ctx, func() (time.Time, error) {
		_, err := js.ResetConsumerToSequence(ctx, topology.StreamControl, consumer, 1)
		if err == nil {
			var reader jetstream.Consumer
			if reader, err = js.Consumer(ctx, topology.StreamControl, consumer); err == nil {
				return reader.CachedInfo().TimeStamp.Add(-time.Since(c.Since)), nil
			}
		}
		err = fmt.Errorf("begin to read consumer %s of stream %s: %w", consumer, topology.StreamControl, err)
		if c.Conn.IsClosed() {
			return time.Time{}, backoff.Permanent(err)
		}
		c.Logger.DebugContext(ctx, "cannot read what the agent is told, trying on", slog.String("error", err.Error()))
		return time.Time{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	return since, err //nolint:wrapcheck // wrapped above
}

func (c Control) handle(ctx context.Context, message jetstream.Msg, since time.Time) {
	if ctx.Err() != nil {
		return // the next leader is told
	}
	err := c.take(message, since)
	if err != nil {
		c.Logger.ErrorContext(ctx, "a message to this agent cannot be understood and is dropped",
			slog.String("subject", message.Subject()), slog.String("error", err.Error()))
		err = message.TermWithReason("it cannot be understood")
	} else {
		err = message.Ack()
	}
	if err != nil {
		c.Logger.DebugContext(ctx, "cannot answer the consumer, it will be told again", slog.String("subject", message.Subject()), slog.String("error", err.Error()))
	}
}

func (c Control) take(message jetstream.Msg, since time.Time) error {
	metadata, err := message.Metadata()
	if err != nil {
		return fmt.Errorf("message: %w", err)
	}
	e, err := event.Decode(message.Headers(), message.Data())
	if err != nil {
		return fmt.Errorf("event: %w", err)
	}
	switch e.Type() {
	case events.TypeAgentConfig:
		var cfg events.AgentConfig
		if err := read(e, &cfg); err != nil {
			return err
		}
		c.Configure(cfg)
	case events.TypeResyncRequested:
		var request events.ResyncRequested
		if err := read(e, &request); err != nil {
			return err
		}
		if !metadata.Timestamp.Before(since) {
			c.Resync(request)
		}
	}
	return nil // what a newer control plane says on these subjects to others is none of our business
}

func read(e event.Event, into any) error {
	if err := events.Validate(e.Type(), e.Data()); err != nil {
		return fmt.Errorf("event %s: %w", e.ID(), err)
	}
	if err := json.Unmarshal(e.Data(), into); err != nil {
		return fmt.Errorf("event %s: %w", e.ID(), err)
	}
	return nil
}
