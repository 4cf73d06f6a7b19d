// Package agentcontrol reads the control messages of an agent: its configuration, its resync
// requests, and how far its observations are processed.
//
// Each run reads them from the first one, so a new leader receives the current configuration. A
// message is acknowledged after it has taken effect; until then it is kept from redelivery. A
// message that cannot be decoded is logged and terminated. Event types that the program does not
// know are ignored.
//
// While NATS is down or the consumer does not exist, the reader retries for ever.
package agentcontrol

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
)

// inProgressInterval is the time between two extensions of a message's acknowledgement deadline.
const inProgressInterval = topology.AgentAckWait / 4

// Handler receives the messages one at a time, in order. Each method returns a channel that is
// closed once the message has taken effect, or nil when it already has. It must not block.
type Handler interface {
	// Configure receives the agent's configuration.
	Configure(ctx context.Context, cfg events.AgentConfig) <-chan struct{}
	// Resync receives a request for a full resync.
	Resync(ctx context.Context, request events.ResyncRequested) <-chan struct{}
}

// Reader reads control messages. Conn, Consumer and Logger are required.
type Reader struct {
	// Conn is the agent's connection.
	Conn *nats.Conn
	// Consumer of the stream CONTROL that belongs to this program and agent.
	Consumer string
	Logger   *slog.Logger
	// SkipResyncsBefore makes the reader skip resync requests stored before this local time. Zero
	// skips none.
	SkipResyncsBefore time.Time
	// OnObservationsRead receives the stream sequence up to which the state service has processed OBSERVED. It must not
	// block. Optional.
	OnObservationsRead func(sequence uint64)
	// SetError is called with an error that names the consumer while it does not answer, and with nil once it answers or
	// Run ends. Optional.
	SetError func(err error)

	once     sync.Once
	caughtUp chan struct{}
}

// NewReader returns a reader for one call of Run.
func NewReader(conn *nats.Conn, consumer string, logger *slog.Logger) *Reader {
	return &Reader{Conn: conn, Consumer: consumer, Logger: logger, caughtUp: make(chan struct{})}
}

// CaughtUp is closed when the reader has passed on every message that was stored before Run.
func (r *Reader) CaughtUp() <-chan struct{} { return r.caughtUp }

// Run reads from the first message until ctx ends. It returns an error only when the owner closed
// the connection.
func (r *Reader) Run(ctx context.Context, handler Handler) error {
	js, err := jetstream.New(r.Conn)
	if err != nil {
		return fmt.Errorf("read control messages: %w", err)
	}
	setError := func(err error) {
		if r.SetError != nil {
			r.SetError(err)
		}
	}
	defer setError(nil)
	var skipBefore time.Time
	err = retry.Policy{Min: 100 * time.Millisecond, Max: 5 * time.Second}.Do(ctx, func() error {
		skipBefore, err = r.reset(ctx, js)
		if err != nil && r.Conn.IsClosed() {
			return retry.Permanent(err)
		}
		return err
	}, func(err error, pause time.Duration) {
		setError(err)
		r.Logger.DebugContext(ctx, "reading control messages failed; retrying", slog.String(logkey.Consumer, r.Consumer),
			slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read control messages: %w", err)
	}
	var acknowledgements sync.WaitGroup
	defer acknowledgements.Wait()
	messages := natsauth.PullReader{
		Conn: r.Conn, Stream: topology.StreamControl, Consumer: r.Consumer, Logger: r.Logger,
		SetError: setError,
		Handle:   func(message jetstream.Msg) { r.handle(ctx, handler, message, skipBefore, &acknowledgements) },
	}
	return messages.Run(ctx)
}

// reset moves the consumer to the first message, because a previous leader may have acknowledged
// it. It returns SkipResyncsBefore by the server's clock.
func (r *Reader) reset(ctx context.Context, js jetstream.JetStream) (time.Time, error) {
	if _, err := js.ResetConsumerToSequence(ctx, topology.StreamControl, r.Consumer, 1); err != nil {
		return time.Time{}, fmt.Errorf("reset consumer %s of stream %s: %w", r.Consumer, topology.StreamControl, err)
	}
	consumer, err := js.Consumer(ctx, topology.StreamControl, r.Consumer)
	if err != nil {
		return time.Time{}, fmt.Errorf("consumer %s of stream %s: %w", r.Consumer, topology.StreamControl, err)
	}
	info := consumer.CachedInfo()
	if info.NumPending == 0 && info.NumAckPending == 0 {
		r.setCaughtUp()
	}
	if r.SkipResyncsBefore.IsZero() {
		return time.Time{}, nil
	}
	return info.TimeStamp.Add(-time.Since(r.SkipResyncsBefore)), nil
}

func (r *Reader) setCaughtUp() { r.once.Do(func() { close(r.caughtUp) }) }

func (r *Reader) handle(
	ctx context.Context, handler Handler, message jetstream.Msg, skipBefore time.Time, acknowledgements *sync.WaitGroup,
) {
	if ctx.Err() != nil {
		return // the next leader reads it
	}
	effect, err := r.dispatch(ctx, handler, message, skipBefore)
	if err != nil {
		r.Logger.ErrorContext(ctx, "dropped an invalid control message",
			slog.String(logkey.Subject, message.Subject()), logkey.Error(err))
		if err := message.TermWithReason(err.Error()); err != nil {
			r.Logger.DebugContext(ctx, "control message not terminated; it will be redelivered", logkey.Error(err))
		}
	} else {
		acknowledgements.Go(func() { r.acknowledge(ctx, message, effect) })
	}
	if metadata, err := message.Metadata(); err == nil && metadata.NumPending == 0 {
		r.setCaughtUp()
	}
}

func (r *Reader) dispatch(
	ctx context.Context, handler Handler, message jetstream.Msg, skipBefore time.Time,
) (effect <-chan struct{}, err error) {
	metadata, err := message.Metadata()
	if err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	e, err := event.Decode(message.Headers(), message.Data())
	if err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	switch e.Type() {
	case events.TypeAgentConfig:
		cfg, err := events.Decode[events.AgentConfig](e.Data())
		if err != nil {
			return nil, fmt.Errorf("event %s: %w", e.ID(), err)
		}
		return handler.Configure(ctx, *cfg), nil
	case events.TypeResyncRequested:
		request, err := events.Decode[events.ResyncRequested](e.Data())
		if err != nil {
			return nil, fmt.Errorf("event %s: %w", e.ID(), err)
		}
		if metadata.Timestamp.Before(skipBefore) {
			return nil, nil //nolint:nilnil // nothing to wait for
		}
		return handler.Resync(ctx, *request), nil
	case events.TypeObservationsRead:
		read, err := events.Decode[events.ObservationsRead](e.Data())
		if err != nil {
			return nil, fmt.Errorf("event %s: %w", e.ID(), err)
		}
		if r.OnObservationsRead != nil {
			r.OnObservationsRead(uint64(read.Sequence))
		}
		return nil, nil //nolint:nilnil // nothing to wait for
	default:
		return nil, nil //nolint:nilnil // an event type of a newer control plane
	}
}

// acknowledge acknowledges the message after its effect and extends its deadline until then.
func (r *Reader) acknowledge(ctx context.Context, message jetstream.Msg, effect <-chan struct{}) {
	ticker := time.NewTicker(inProgressInterval)
	defer ticker.Stop()
	for effect != nil {
		select {
		case <-effect:
			effect = nil
		case <-ticker.C:
			if err := message.InProgress(); err != nil {
				r.Logger.DebugContext(ctx, "acknowledgement deadline of a control message not extended", logkey.Error(err))
			}
		case <-ctx.Done():
			return // the next leader reads it
		}
	}
	if err := message.Ack(); err != nil {
		r.Logger.DebugContext(ctx, "control message not acknowledged; it will be redelivered",
			slog.String(logkey.Subject, message.Subject()), logkey.Error(err))
	}
}
