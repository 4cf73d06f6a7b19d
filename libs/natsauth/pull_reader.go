package natsauth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// PullReader reads one of an agent's consumers across the account border, for as long as it runs.
//
// It is there because consuming does not survive a reconnect well: the server forgets the way back of pull requests
// when a client goes, but not the requests, and where the client comes back with the same inbox it goes on answering
// them into the void, before the new ones. Each message so lost comes again only after the consumer's AckWait, until
// the old requests expire. So each request of an Intake has an inbox of its own, and one that was sent before a
// reconnect, or while it happened, is given up, which makes the server drop it at once where it leads the consumer itself;
// where another server of the cluster does, that one cannot see inboxes, and drops the request when it expires, soon.
// nats.go's own Consume and Messages ask again from a goroutine of theirs, at times for an inbox that is gone already.
//
// A message that another consumer delivered is dropped: whoever shares the account and knew the name of an inbox could have
// its own sent there.
//
// Messages are handled one at a time, in the order of the stream except for those delivered again: what is under way
// when the connection breaks, or comes in the ten seconds after it in a cluster, may be late by AckWait.
type PullReader struct {
	// Conn is the agent's connection. Required.
	Conn *nats.Conn
	// Stream and Consumer name what is read. The consumer must have been made in advance. Required.
	Stream   string
	Consumer string
	// Handle gets every message and must acknowledge it. Required.
	Handle func(jetstream.Msg)
	// Logger is told of what is waited for. Required.
	Logger *slog.Logger
	// RequestTimeout of one request. Defaults to 10 s; at most a minute of silence passes the border.
	RequestTimeout time.Duration
}

const (
	intakeWait    = time.Second
	intakeMaxWait = 30 * time.Second
	intakeExpiry  = 10 * time.Second
	intakeBatch   = 500
)

// ErrInvalidPullReader is wrapped by what [PullReader.Run] returns for fields that it cannot run with.
var ErrInvalidPullReader = errors.New("invalid intake")

// Run reads until the context ends, then lets Handle finish what has arrived. It waits for a consumer that is not
// there yet. Its only other end is a connection that its owner closed.
func (i *PullReader) Run(ctx context.Context) error {
	if i.Conn == nil || i.Stream == "" || i.Consumer == "" || i.Handle == nil || i.Logger == nil {
		return fmt.Errorf("%w: connection, stream, consumer, handler and logger are required", ErrInvalidPullReader)
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

		if consumer, err := i.lookUp(ctx, js); err == nil {
			i.read(ctx, consumer, status)
		}
	}

	return nil
}

// lookUp retries until the consumer is there, the context ends or the connection is closed.
func (i *PullReader) lookUp(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = intakeWait
	wait.MaxInterval = intakeMaxWait

	consumer, err := backoff.Retry(ctx, func() (jetstream.Consumer, error) {
		if i.Conn.IsClosed() {
			return nil, backoff.Permanent(nats.ErrConnectionClosed)
		}

		consumer, err := js.Consumer(ctx, i.Stream, i.Consumer)
		if err != nil {
			return nil, fmt.Errorf("look up consumer %s on stream %s: %w", i.Consumer, i.Stream, err)
		}

		return consumer, nil
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, wait time.Duration) {
		i.Logger.WarnContext(ctx, "intake waits", slog.Any("error", err), slog.Duration("wait", wait))
	}))
	if err != nil {
		return nil, fmt.Errorf("intake: %w", err)
	}

	return consumer, nil
}

// read asks for messages and handles them, one request after the other, until the connection has changed, a request
// fails or the context ends.
func (i *PullReader) read(ctx context.Context, consumer jetstream.Consumer, status <-chan nats.Status) {
	ctx, cancel := context.WithCancel(ctx)

	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()

	watching.Go(func() {
		select {
		case <-status:
			cancel()
		case <-ctx.Done():
		}
	})

	i.Logger.DebugContext(ctx, "intake reads", slog.String("stream", i.Stream), slog.String("consumer", i.Consumer))

	for ctx.Err() == nil {
		if err := i.request(ctx, consumer); err != nil && ctx.Err() == nil {
			i.Logger.WarnContext(ctx, "intake is disturbed",
				slog.String("stream", i.Stream), slog.String("consumer", i.Consumer), slog.Any("error", err))

			return
		}
	}
}

// acknowledgements is how the subjects begin on which messages of the consumer are acknowledged; only the server makes replies of that kind.
func (i *PullReader) acknowledgements() string { return "$JS.ACK." + i.Stream + "." + i.Consumer + "." }

// request is one pull request: it handles messages as they arrive and returns when it is used up or has expired.
func (i *PullReader) request(ctx context.Context, consumer jetstream.Consumer) error {
	expiry := i.RequestTimeout
	if expiry == 0 {
		expiry = intakeExpiry
	}

	ctx, cancel := context.WithTimeout(ctx, expiry)
	defer cancel()

	batch, err := consumer.Fetch(intakeBatch, jetstream.FetchContext(ctx))
	if err != nil {
		return fmt.Errorf("ask for messages: %w", err)
	}

	for message := range batch.Messages() {
		if !strings.HasPrefix(message.Reply(), i.acknowledgements()) {
			i.Logger.WarnContext(ctx, "intake drops a message that is not for it",
				slog.String("consumer", i.Consumer), slog.String("subject", message.Subject()), slog.String("reply", message.Reply()))

			continue
		}

		i.Handle(message)
	}

	err = batch.Error()
	if err == nil || errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}

	return fmt.Errorf("receive messages: %w", err)
}
