package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
)

// Desired reads the desired state of an agent's workspaces. All fields are required.
type Desired struct {
	Conn   *nats.Conn
	Cell   topology.Cell
	Agent  int64
	Logger *slog.Logger
	// Take is called with one message at a time and must keep what it needs. The message is acknowledged when it returns.
	Take func(ctx context.Context, subject string, header nats.Header, data []byte)
	// Waiting is called when reading cannot begin, with the reason, and with nil when it has begun.
	Waiting func(err error)
}

// Run begins with the first message and reads until the context is done. It waits for a consumer that is not there. After the
// context's end nothing is taken or acknowledged.
func (d Desired) Run(ctx context.Context) error {
	js, err := jetstream.New(d.Conn)
	if err != nil {
		return fmt.Errorf("read desired states: %w", err)
	}
	if err := d.reset(ctx, js); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // told to stop
		}
		return err
	}
	intake := natsauth.PullReader{
		Conn: d.Conn, Stream: topology.StreamDesired, Consumer: topology.DispatcherConsumer(d.Agent), Logger: d.Logger,
		Handle: func(message jetstream.Msg) { d.handle(ctx, message) },
	}
	if err := intake.Run(ctx); err != nil {
		return fmt.Errorf("read desired states: %w", err)
	}
	return nil
}

// reset retries until the consumer begins anew.
func (d Desired) reset(ctx context.Context, js jetstream.JetStream) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 100 * time.Millisecond
	wait.MaxInterval = 5 * time.Second
	consumer := topology.DispatcherConsumer(d.Agent)
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		_, err := js.ResetConsumerToSequence(ctx, topology.StreamDesired, consumer, 1)
		switch {
		case err == nil:
			d.Waiting(nil)
			return struct{}{}, nil
		case d.Conn.IsClosed():
			return struct{}{}, backoff.Permanent(err)
		case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrConsumerDoesNotExist), errors.Is(err, jetstream.ErrStreamNotFound):
			err = fmt.Errorf("the consumer %s is not there; is agent %d registered?: %w", consumer, d.Agent, err)
		default:
			err = fmt.Errorf("begin to read consumer %s: %w", consumer, err)
		}
		if ctx.Err() == nil {
			d.Waiting(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	return err //nolint:wrapcheck // wrapped above
}

func (d Desired) handle(ctx context.Context, message jetstream.Msg) {
	if ctx.Err() != nil {
		return // the next leader is told
	}
	d.Take(ctx, message.Subject(), message.Headers(), message.Data())
	if err := message.Ack(); err != nil {
		// It comes again and is dropped then.
		d.Logger.DebugContext(ctx, "cannot acknowledge a desired state", slog.String("subject", message.Subject()), slog.String("error", err.Error()))
	}
}
