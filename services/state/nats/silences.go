package nats

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/agent"
)

// checksPerPatience is how often agents are judged within [Silences.Patience].
const checksPerPatience = 12

// Silences finds agents whose watcher reports nothing any more. It judges only by what the consumer of OBSERVED has
// processed, and only while the stream can be reached. Each replica may run one. Fields are required.
type Silences struct {
	JetStream jetstream.JetStream
	// Patience is how long an agent may report nothing.
	Patience time.Duration
	// Processed returns the last sequence of OBSERVED that is processed.
	Processed func(ctx context.Context) (uint64, error)
	// Record records and returns which agents reported before a time and not since, and which report again.
	Record func(ctx context.Context, before, at time.Time) (silent, returned []agent.Silence, err error)
	// Count returns the number of silent agents.
	Count  func(ctx context.Context) (int64, error)
	Logger *slog.Logger

	silent atomic.Int64
}

var silentAgents = prometheus.NewDesc(
	"lockstep_state_agents_silent", "Agents whose watcher reported before and reports nothing any more.", nil, nil,
)

// Describe implements prometheus.Collector.
func (s *Silences) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- silentAgents }

// Collect implements prometheus.Collector.
func (s *Silences) Collect(metrics chan<- prometheus.Metric) {
	metrics <- prometheus.MustNewConstMetric(silentAgents, prometheus.GaugeValue, float64(s.silent.Load()))
}

// observedEnd is the end of OBSERVED when it was last reached.
type observedEnd struct {
	sequence uint64
	watch    agent.StreamWatch
}

// Run judges the agents until ctx ends. It retries all failures.
func (s *Silences) Run(ctx context.Context) error {
	var end observedEnd
	var failures retry.FailureLog
	for {
		next, err := s.check(ctx, end)
		if end = next; err == nil {
			failures.Reset()
		} else if ctx.Err() == nil {
			s.Logger.LogAttrs(ctx, failures.Level(), "judging the silence of agents failed; retrying", logkey.Error(err))
		}
		if retry.Sleep(ctx, s.Patience/checksPerPatience) != nil {
			return nil //nolint:nilerr // ctx has ended
		}
	}
}

// check judges the agents as of the given end of the stream, if all messages before it are processed. It returns the
// present end, which begins a new watch if the stream cannot be reached.
func (s *Silences) check(ctx context.Context, end observedEnd) (observedEnd, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Patience/2)
	defer cancel()
	stream, err := s.JetStream.Stream(ctx, topology.StreamObserved)
	if err != nil {
		return observedEnd{}, fmt.Errorf("reach %s: %w", topology.StreamObserved, err)
	}
	info := stream.CachedInfo()
	now := observedEnd{info.State.LastSeq, end.watch.Reached(info.TimeStamp, s.Patience)}
	processed, err := s.Processed(ctx)
	if err != nil || processed < end.sequence {
		return now, err
	}
	return now, s.record(ctx, end.watch)
}

func (s *Silences) record(ctx context.Context, watch agent.StreamWatch) error {
	silent, returned, err := s.Record(ctx, watch.SilentBefore(s.Patience), watch.Until())
	if err != nil {
		return err
	}
	for _, found := range returned {
		s.Logger.InfoContext(ctx, "agent returned", slog.Int64(logkey.AgentID, found.AgentID),
			slog.Time(logkey.Since, found.Since))
	}
	for _, found := range silent {
		s.Logger.WarnContext(ctx, "agent is silent", slog.Int64(logkey.AgentID, found.AgentID),
			slog.Time(logkey.Since, found.Since))
	}
	count, err := s.Count(ctx)
	if err != nil {
		return err
	}
	s.silent.Store(count)
	return nil
}
