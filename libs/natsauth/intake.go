package natsauth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Intake reads one of an agent's consumers across the account border, for as long as it runs.
//
// It is there because consuming alone does not survive a reconnect well: the server forgets the way back of pull
// requests when a client goes, but not the requests, and since the client comes back with the same inbox it goes on
// answering them into the void, before the new ones. Each message so lost comes again only after the consumer's
// AckWait, until the old requests expire. So Intake takes a new inbox after every reconnect, which makes the server
// drop the old requests at once where it leads the consumer itself; where another server of the cluster does, that one
// cannot see inboxes, and drops them only when they expire, which Intake lets them do soon.
//
// Messages are handled one at a time, in the order of the stream except for those delivered again: what is under way
// when the connection breaks, or comes in the ten seconds after it in a cluster, may be late by AckWait.
type Intake struct {
	// Conn is the agent's connection. Required.
	Conn *nats.Conn
	// Stream and Consumer name what is read. The consumer must have been made in advance. Required.
	Stream   string
	Consumer string
	// Handle gets every message and must acknowledge it. Required.
	Handle func(jetstream.Msg)
	// Logger is told of what is waited for. Required.
	Logger *slog.Logger
	// Options of each pull. Defaults to requests that expire after 10 s; they must not be silent for a minute.
	Options []jetstream.PullConsumeOpt
}

const (
	intakeWait    = time.Second
	intakeMaxWait = 30 * time.Second
	intakeExpiry  = 10 * time.Second
)

// ErrInvalidIntake is wrapped by what [Intake.Run] returns for fields that it cannot run with.
var ErrInvalidIntake = errors.New("invalid intake")

// Run reads until the context ends, then lets Handle finish what has arrived. It waits for a consumer that is not
// there yet. Its only other end is a connection that its owner closed.
func (i *Intake) Run(ctx context.Context) error {
	if i.Conn == nil || i.Stream == "" || i.Consumer == "" || i.Handle == nil || i.Logger == nil {
		return fmt.Errorf("%w: connection, stream, consumer, handler and logger are required", ErrInvalidIntake)
	}

	js, err := jetstream.New(i.Conn)
	if err != nil {
		return fmt.Errorf("intake of %s: %w", i.Stream, err)
	}

	status := i.Conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer i.Conn.RemoveStatusListener(status)

	for ctx.Err() == nil {
		if i.Conn.IsClosed() {
			return fmt.Errorf("intake of %s: %w", i.Stream, nats.ErrConnectionClosed)
		}

		consuming, err := i.start(ctx, js)
		if err != nil {
			continue
		}

		select {
		case <-ctx.Done():
		case <-status:
		case <-consuming.Closed():
		}

		// Ends the inbox, and hands over what is in it already.
		consuming.Drain()
		<-consuming.Closed()
	}

	return nil
}

// start retries until it has begun to read, the context ends or the connection is closed.
func (i *Intake) start(ctx context.Context, js jetstream.JetStream) (jetstream.ConsumeContext, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = intakeWait
	wait.MaxInterval = intakeMaxWait

	consuming, err := backoff.Retry(ctx, func() (jetstream.ConsumeContext, error) {
		if i.Conn.IsClosed() {
			return nil, backoff.Permanent(nats.ErrConnectionClosed)
		}

		consumer, err := js.Consumer(ctx, i.Stream, i.Consumer)
		if err != nil {
			return nil, fmt.Errorf("look up consumer %s on stream %s: %w", i.Consumer, i.Stream, err)
		}

		options := append([]jetstream.PullConsumeOpt{
			jetstream.ConsumeErrHandler(i.complain), jetstream.PullExpiry(intakeExpiry),
		}, i.Options...)

		consuming, err := consumer.Consume(i.Handle, options...)
		if err != nil {
			return nil, fmt.Errorf("consume %s of stream %s: %w", i.Consumer, i.Stream, err)
		}

		return consuming, nil
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, wait time.Duration) {
		i.Logger.WarnContext(ctx, "intake waits", slog.Any("error", err), slog.Duration("wait", wait))
	}))
	if err != nil {
		return nil, fmt.Errorf("intake: %w", err)
	}

	flush, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()

	if err := i.Conn.FlushWithContext(flush); err == nil {
		i.Logger.DebugContext(ctx, "intake reads", slog.String("stream", i.Stream), slog.String("consumer", i.Consumer))
	}

	return consuming, nil
}

func (i *Intake) complain(_ jetstream.ConsumeContext, err error) {
	i.Logger.Warn("intake is disturbed",
		slog.String("stream", i.Stream), slog.String("consumer", i.Consumer), slog.Any("error", err))
}
