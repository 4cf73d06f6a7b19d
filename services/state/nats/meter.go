package nats

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/meter"
)

// messageOverhead is what a message takes on the stream besides its subject, headers and data, in bytes.
const messageOverhead = 50

// meterRetry is the pause before the meter reads on after a failure.
var meterRetry = retry.Policy{Min: 50 * time.Millisecond, Max: 2 * time.Second}

// Meter reads all messages of agents, and blocks an agent that exceeds the limits. It does not wait for
// the database that the consumers write to. Each replica may run one. Its fields are required.
type Meter struct {
	JetStream jetstream.JetStream
	Limits    meter.Limits
	Logger    *slog.Logger
	// Block blocks an agent. Its credentials are refused when Block returns. It returns false if the agent is blocked
	// for as long already.
	Block func(ctx context.Context, excess meter.Excess) (bool, error)
	// Unblock ends the blocks that were stored before a time, except those of these agents. Higher limits so have an
	// effect when the service starts.
	Unblock func(ctx context.Context, before time.Time, except []int64) error
	// Disconnect closes the agent's connections.
	Disconnect func(ctx context.Context, agent int64) error

	counting sync.Mutex
	counts   *meter.Meter
}

// reportedPart is the part of a limit from which an agent has a value in the metric.
const reportedPart = 0.5

var usedLimit = prometheus.NewDesc(
	"lockstep_state_agent_limit_used_ratio",
	"Use of the limit that is closest to its maximum, from 0.5; 1 is all. Above 1 the agent is blocked.",
	[]string{"agent", "stream"}, nil,
)

// Describe implements prometheus.Collector.
func (m *Meter) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- usedLimit }

// Collect implements prometheus.Collector.
func (m *Meter) Collect(metrics chan<- prometheus.Metric) {
	m.counting.Lock()
	defer m.counting.Unlock()
	if m.counts == nil {
		return
	}
	for _, u := range m.counts.Used(time.Now(), reportedPart) {
		metrics <- prometheus.MustNewConstMetric(
			usedLimit, prometheus.GaugeValue, u.Part, strconv.FormatInt(u.AgentID, 10), u.Stream)
	}
}

// Run reads all messages that count, so that a restart forgets nothing, until ctx ends. If reading fails, it reads on
// after the last message.
func (m *Meter) Run(ctx context.Context) error {
	began := time.Now()
	m.counting.Lock()
	m.counts = meter.New(m.Limits)
	m.counting.Unlock()
	group, groupCtx := errgroup.WithContext(ctx)
	streams := []string{topology.StreamObserved, topology.StreamApplied}
	var reading sync.WaitGroup // until each stream was read to its end once
	reading.Add(len(streams))
	group.Go(func() error {
		reading.Wait()
		return m.unblock(groupCtx, began)
	})
	for _, stream := range streams {
		group.Go(func() error {
			caughtUp := sync.OnceFunc(reading.Done)
			defer caughtUp()
			return m.read(groupCtx, stream, caughtUp, func(message meter.Message) {
				m.counting.Lock()
				excess, exceeded := m.counts.Add(message)
				m.counting.Unlock()
				old := excess.Repeated && message.Stored.Before(began) // the first report suffices
				if exceeded && !old && time.Now().Before(excess.Until) {
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

// read calls add with each message of an agent, and caughtUp at the end of the stream, until ctx ends.
func (m *Meter) read(ctx context.Context, stream string, caughtUp func(), add func(meter.Message)) error {
	var failures retry.FailureLog
	since, backoff := meter.Since(time.Now()), meterRetry.Backoff()
	for {
		err := readSince(ctx, m.JetStream, stream, since, func(received *natsgo.Msg, meta *natsgo.MsgMetadata) {
			since = meta.Timestamp.Add(1)
			backoff.Reset()
			failures.Reset()
			if message, ok := metered(received, meta); ok {
				add(message)
			}
		}, caughtUp)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it has ended as asked
		}
		pause := backoff.Next()
		m.Logger.LogAttrs(ctx, failures.Level(), "the meter of agents failed; retrying",
			slog.String(logkey.Stream, stream), slog.Duration(logkey.RetryIn, pause), logkey.Error(err))
		if err := retry.Sleep(ctx, pause); err != nil {
			return nil //nolint:nilerr // it has ended as asked
		}
	}
}

// metered returns the message as it counts. It returns false if no agent published it.
func metered(received *natsgo.Msg, meta *natsgo.MsgMetadata) (meter.Message, bool) {
	tokens := strings.SplitN(received.Subject, ".", 5) // lockstep.<cell>.<family>.<agent>.…
	if len(tokens) < 4 {
		return meter.Message{}, false
	}
	agentID, err := topology.Subject{Family: tokens[2], Tokens: tokens[3:]}.Agent()
	if err != nil {
		return meter.Message{}, false // an event about a whole cluster
	}
	// Size is that of all received bytes. So it counts headers that the client could not decode, too.
	size := messageOverhead + received.Size() - len(received.Reply)
	return meter.Message{
		AgentID: agentID, Stream: meta.Stream, Subject: received.Subject, Bytes: size, Stored: meta.Timestamp,
	}, true
}

// unblock ends the blocks that were stored before a time, except those of agents that exceed a limit. It retries until
// ctx ends.
func (m *Meter) unblock(ctx context.Context, before time.Time) error {
	err := meterRetry.Do(ctx, func() error {
		m.counting.Lock()
		exceeding := m.counts.Exceeding(time.Now())
		m.counting.Unlock()
		return m.Unblock(ctx, before, exceeding)
	}, func(err error, pause time.Duration) {
		m.Logger.WarnContext(ctx, "unblocking agents failed; retrying", slog.Duration(logkey.RetryIn, pause),
			logkey.Error(err))
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("unblock agents: %w", err)
	}
	return nil
}

// expel blocks and disconnects an agent. It retries until ctx ends, or until the end of the excess.
func (m *Meter) expel(ctx context.Context, excess meter.Excess) error {
	ctx, cancel := context.WithDeadline(ctx, excess.Until)
	defer cancel()
	err := retry.Policy{Min: 50 * time.Millisecond, Max: 5 * time.Second}.Do(ctx, func() error {
		blocked, err := m.Block(ctx, excess)
		if err != nil {
			return err
		}
		if blocked {
			m.Logger.WarnContext(ctx, "blocked an agent", slog.Int64(logkey.AgentID, excess.AgentID),
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
