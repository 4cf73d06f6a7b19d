package natsauth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
)

// PullReader reads one of an agent's consumers across the account boundary.
//
// nats.go's Consume and Messages lose messages after a reconnect there: the server forgets the
// reply path of pull requests, but keeps answering the requests while the client uses the same
// inbox. Each lost message returns only after the consumer's AckWait. So each request of a
// PullReader has its own inbox, and a reconnect abandons the current request. If the server of the
// client leads the consumer, it drops the request at once; otherwise the leader drops it when it
// expires.
//
// PullReader drops messages of other consumers: a user of the account who knows an inbox could
// direct its own messages there.
//
// It handles one message at a time, in stream order except for redeliveries. Messages in flight
// during a disconnect may arrive late, after AckWait. In a NATS cluster this includes messages that
// the leader sends to the abandoned request until it expires, after RequestTimeout.
type PullReader struct {
	// Conn is the agent's connection. Required.
	Conn *nats.Conn
	// Stream and Consumer name an existing consumer. Required.
	Stream   string
	Consumer string
	// Handle must acknowledge each message. Required.
	Handle func(jetstream.Msg)
	// Logger. Required.
	Logger *slog.Logger
	// SetError is called with an error that names the consumer while it has not answered for SilentAfter, and with nil
	// once it answers or Run ends. Optional.
	SetError func(err error)
	// SilentAfter defaults to 10 s: the servers need up to 9 s to elect another leader of the consumer.
	SilentAfter time.Duration
	// RequestTimeout of one pull request. Defaults to 3 s. The maximum is one minute, the time for
	// which the boundary keeps an idle reply path.
	RequestTimeout time.Duration

	silentSince time.Time // zero while the consumer answers
}

const (
	// pullTimeout is also the time after which a reader notices that the server that led its consumer has failed.
	pullTimeout = 3 * time.Second
	pullBatch   = 500
	// lookupTimeout bounds a request about the consumer, which nobody answers while the servers elect its leader.
	lookupTimeout      = time.Second
	defaultSilentAfter = 10 * time.Second
)

// ErrInvalidPullReader is wrapped by errors of [PullReader.Run] about missing fields.
var ErrInvalidPullReader = errors.New("invalid pull reader")

// Run reads until ctx ends, then handles the messages that have arrived. It waits for a consumer
// that does not exist yet. It returns an error only when the owner closed the connection.
func (r *PullReader) Run(ctx context.Context) error {
	if r.Conn == nil || r.Stream == "" || r.Consumer == "" || r.Handle == nil || r.Logger == nil {
		return fmt.Errorf("%w: connection, stream, consumer, handler and logger are required", ErrInvalidPullReader)
	}
	js, err := jetstream.New(r.Conn)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", r.Stream, err)
	}
	defer r.recordAnswer(nil)
	status := r.Conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer r.Conn.RemoveStatusListener(status)
	for ctx.Err() == nil {
		if r.Conn.IsClosed() {
			return fmt.Errorf("read stream %s: %w", r.Stream, nats.ErrConnectionClosed)
		}
		if consumer, err := r.findConsumer(ctx, js); err == nil {
			r.read(ctx, consumer, status)
		}
	}
	return nil
}

// findConsumer retries until the consumer exists, ctx ends or the connection is closed.
func (r *PullReader) findConsumer(
	ctx context.Context, js jetstream.JetStream,
) (consumer jetstream.Consumer, err error) {
	err = retry.Policy{Min: 100 * time.Millisecond, Max: time.Second}.Do(ctx, func() error {
		if r.Conn.IsClosed() {
			return retry.Permanent(nats.ErrConnectionClosed)
		}
		lookupCtx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		if consumer, err = js.Consumer(lookupCtx, r.Stream, r.Consumer); err != nil {
			err = fmt.Errorf("find consumer %s of stream %s: %w", r.Consumer, r.Stream, err)
		}
		r.recordAnswer(err)
		return err
	}, func(err error, pause time.Duration) {
		r.Logger.WarnContext(ctx, "pull reader waits for its consumer",
			slog.String(logkey.Stream, r.Stream), slog.String(logkey.Consumer, r.Consumer),
			slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
	})
	return consumer, err
}

// recordAnswer records whether the consumer has answered.
func (r *PullReader) recordAnswer(err error) {
	switch {
	case r.SetError == nil:
	case err == nil:
		r.silentSince = time.Time{}
		r.SetError(nil)
	case r.silentSince.IsZero():
		r.silentSince = time.Now()
	case time.Since(r.silentSince) >= cmp.Or(r.SilentAfter, defaultSilentAfter):
		r.SetError(fmt.Errorf("consumer %s of stream %s has not answered for %s: %w",
			r.Consumer, r.Stream, time.Since(r.silentSince).Round(time.Second), err))
	}
}

// read requests and handles messages until the connection changes, a request fails or ctx ends.
func (r *PullReader) read(ctx context.Context, consumer jetstream.Consumer, status <-chan nats.Status) {
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
	r.Logger.DebugContext(ctx, "pull reader started",
		slog.String(logkey.Stream, r.Stream), slog.String(logkey.Consumer, r.Consumer))
	for ctx.Err() == nil {
		if err := r.request(ctx, consumer); err != nil && ctx.Err() == nil {
			r.Logger.WarnContext(ctx, "pull request failed, retrying",
				slog.String(logkey.Stream, r.Stream), slog.String(logkey.Consumer, r.Consumer), logkey.Error(err))
			return
		}
	}
}

// ackPrefix is the prefix of the consumer's acknowledgement subjects. Only the server sets such
// replies.
func (r *PullReader) ackPrefix() string { return "$JS.ACK." + r.Stream + "." + r.Consumer + "." }

// request sends one pull request and handles messages until the request is complete or has expired.
func (r *PullReader) request(ctx context.Context, consumer jetstream.Consumer) error {
	timeout := r.RequestTimeout
	if timeout == 0 {
		timeout = pullTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	batch, err := consumer.Fetch(pullBatch, jetstream.FetchContext(ctx))
	if err != nil {
		return fmt.Errorf("request messages: %w", err)
	}
	for message := range batch.Messages() {
		if !strings.HasPrefix(message.Reply(), r.ackPrefix()) {
			r.Logger.WarnContext(ctx, "pull reader dropped a message of another consumer",
				slog.String(logkey.Consumer, r.Consumer), slog.String(logkey.Subject, message.Subject()),
				slog.String(logkey.Reply, message.Reply()))
			continue
		}
		r.Handle(message)
	}
	if err = batch.Error(); err != nil {
		err = fmt.Errorf("receive messages: %w", err)
	}
	r.recordAnswer(err)
	return err
}
