package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/meter"
)

const (
	// msgSizeHeader is the header in which the server reports the size of the data that it does not deliver.
	msgSizeHeader = "Nats-Msg-Size"
	// messageOverhead is what a message takes on the stream besides its subject, headers and data, in bytes.
	messageOverhead = 50
)

// Meter reads the headers of all messages of agents, and blocks an agent that exceeds the limits. It does not wait for
// the database that the consumers write to. Each replica may run one. Its fields are required.
type Meter struct {
	JetStream jetstream.JetStream
	Limits    meter.Limits
	Logger    *slog.Logger
	// Block blocks an agent. Its credentials are refused when Block returns. It returns false if the agent is blocked
	// already.
	Block func(ctx context.Context, excess meter.Excess) (bool, error)
	// Disconnect closes the agent's connections.
	Disconnect func(ctx context.Context, agent int64) error
}

// Run reads from one window before now, so that a restart forgets nothing, until ctx ends or reading fails. Then it may
// be called again.
func (m *Meter) Run(ctx context.Context) error {
	var counting sync.Mutex
	counts := meter.New(m.Limits)
	group, groupCtx := errgroup.WithContext(ctx)
	for _, stream := range []string{topology.StreamObserved, topology.StreamApplied} {
		group.Go(func() error {
			return m.read(groupCtx, stream, func(message meter.Message) {
				counting.Lock()
				excess, exceeded := counts.Add(message)
				counting.Unlock()
				if exceeded && time.Now().Before(excess.Until) {
					group.Go(func() error { return m.expel(groupCtx, excess) })
				}
			})
		})
	}
	if err := group.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("meter: %w", err)
	}
	return nil
}

// read calls add with each message of an agent.
func (m *Meter) read(ctx context.Context, stream string, add func(meter.Message)) error {
	since := time.Now().Add(-meter.Window)
	consumer, err := m.JetStream.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since, HeadersOnly: true,
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", stream, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read %s: %w", stream, err)
	}
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	defer messages.Stop()
	for {
		received, err := messages.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", stream, err)
		}
		message, err := metered(received)
		if err != nil {
			return fmt.Errorf("read %s: %w", stream, err)
		}
		if message.AgentID != 0 {
			add(message)
		}
	}
}

// metered returns the message as it counts. Its AgentID is 0 if no agent published it.
func metered(received jetstream.Msg) (meter.Message, error) {
	meta, err := received.Metadata()
	if err != nil {
		return meter.Message{}, err //nolint:wrapcheck // the caller wraps it
	}
	tokens := strings.SplitN(received.Subject(), ".", 5) // lockstep.<cell>.<family>.<agent>.…
	if len(tokens) < 4 {
		return meter.Message{}, nil
	}
	agentID, err := topology.Subject{Family: tokens[2], Tokens: tokens[3:]}.Agent()
	if err != nil {
		return meter.Message{}, nil //nolint:nilerr // an event about a whole cluster
	}
	return meter.Message{
		AgentID: agentID, Subject: received.Subject(), Bytes: storedSize(received), Stored: meta.Timestamp,
	}, nil
}

// storedSize returns the size of a message whose data is not delivered.
func storedSize(received jetstream.Msg) int {
	size := messageOverhead + len(received.Subject())
	for name, values := range received.Headers() {
		for _, value := range values {
			size += len(name) + len(": \r\n") + len(value)
		}
	}
	// The server adds its value after those of the publisher.
	if sizes := received.Headers().Values(msgSizeHeader); len(sizes) > 0 {
		if data, err := strconv.Atoi(sizes[len(sizes)-1]); err == nil {
			size += data
		}
	}
	return size
}

// expel blocks and disconnects an agent. It retries until ctx ends, or until the agent's hour is over.
func (m *Meter) expel(ctx context.Context, excess meter.Excess) error {
	ctx, cancel := context.WithDeadline(ctx, excess.Until)
	defer cancel()
	err := retry.Policy{Min: 50 * time.Millisecond, Max: 5 * time.Second}.Do(ctx, func() error {
		blocked, err := m.Block(ctx, excess)
		if err != nil {
			return err
		}
		if blocked {
			m.Logger.WarnContext(ctx, "blocked an agent until its hour is over", slog.Int64(logkey.AgentID, excess.AgentID),
				slog.String(logkey.Reason, excess.Reason), slog.Time(logkey.Until, excess.Until))
		}
		return m.Disconnect(ctx, excess.AgentID)
	}, func(err error, pause time.Duration) {
		m.Logger.WarnContext(ctx, "expelling an agent failed; retrying", slog.Int64(logkey.AgentID, excess.AgentID),
			slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("expel agent %d: %w", excess.AgentID, err)
	}
	return nil
}
