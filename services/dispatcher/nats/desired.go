package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
)

// DesiredReader reads the desired states of an agent's workspaces. All fields are required.
type DesiredReader struct {
	Conn    *nats.Conn
	AgentID int64
	Logger  *slog.Logger
	// Receive is called with one message at a time. The message is acknowledged when it returns.
	Receive func(ctx context.Context, subject string, header nats.Header, data []byte)
	// SetError is called with the reason why reading cannot start or the consumer does not answer, and with nil once
	// it does.
	SetError func(err error)
}

// Run reads from the first message until ctx ends. It waits for a consumer that does not exist yet.
// After the end of ctx it neither receives nor acknowledges.
func (d DesiredReader) Run(ctx context.Context) error {
	js, err := jetstream.New(d.Conn, jetstream.WithDefaultTimeout(resetTimeout))
	if err != nil {
		return fmt.Errorf("read desired states: %w", err)
	}
	if err := d.reset(ctx, js); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to stop
		}
		return fmt.Errorf("read desired states: %w", err)
	}
	reader := natsauth.PullReader{
		Conn: d.Conn, Stream: topology.StreamDesired, Consumer: topology.DispatcherConsumer(d.AgentID), Logger: d.Logger,
		Handle: func(message jetstream.Msg) { d.handle(ctx, message) }, SetError: d.SetError,
	}
	if err := reader.Run(ctx); err != nil {
		return fmt.Errorf("read desired states: %w", err)
	}
	return nil
}

// resetTimeout bounds one attempt to reset the consumer, which nobody answers while the servers elect its leader.
const resetTimeout = time.Second

// reset retries until the consumer is at the first message.
func (d DesiredReader) reset(ctx context.Context, js jetstream.JetStream) error {
	consumer := topology.DispatcherConsumer(d.AgentID)
	return retry.Policy{Min: 100 * time.Millisecond, Max: time.Second}.Do(ctx, func() error {
		_, err := js.ResetConsumerToSequence(ctx, topology.StreamDesired, consumer, 1)
		switch {
		case err == nil:
			d.SetError(nil)
			return nil
		case d.Conn.IsClosed():
			return retry.Permanent(err)
		case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrConsumerDoesNotExist),
			errors.Is(err, jetstream.ErrStreamNotFound):
			err = fmt.Errorf("consumer %s of stream %s does not exist; is agent %d registered?: %w",
				consumer, topology.StreamDesired, d.AgentID, err)
		default:
			err = fmt.Errorf("reset consumer %s of stream %s: %w", consumer, topology.StreamDesired, err)
		}
		if ctx.Err() == nil {
			d.SetError(err)
		}
		return err
	}, nil)
}

func (d DesiredReader) handle(ctx context.Context, message jetstream.Msg) {
	if ctx.Err() != nil {
		return // the next leader reads it
	}
	d.Receive(ctx, message.Subject(), message.Headers(), message.Data())
	if err := message.Ack(); err != nil {
		// The queue drops the redelivery.
		d.Logger.DebugContext(ctx, "desired state not acknowledged; it will be redelivered",
			slog.String(logkey.Subject, message.Subject()), logkey.Error(err))
	}
}
