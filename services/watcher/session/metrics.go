package session

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/schemas/gen/events"
)

// Metrics of one watcher process.
type Metrics struct {
	published *prometheus.CounterVec
	acked     prometheus.Counter
	retried   prometheus.Counter
	rejected  prometheus.Counter
	malformed prometheus.Counter
	skipped   prometheus.Counter
	resyncs   *prometheus.CounterVec
	duration  prometheus.Histogram
	sessions  prometheus.Counter
}

// NewMetrics registers the metrics. Current returns the running session or nil.
func NewMetrics(registry prometheus.Registerer, current func() *Session) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "lockstep_watcher_" + name, Help: help})
	}
	gauge := func(name, help string, value func(*Session) float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lockstep_watcher_" + name, Help: help}, func() float64 {
			if s := current(); s != nil {
				return value(s)
			}
			return 0
		})
	}
	m := &Metrics{
		published: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_watcher_published_total", Help: "Published observations by kind and update type: partial or full.",
		}, []string{"kind", "update_type"}),
		acked:    counter("acked_total", "Observations that the stream acknowledged."),
		retried:  counter("retried_total", "Observations published again after a failure."),
		rejected: counter("rejected_total", "Observations that were too large to publish."),
		malformed: counter("malformed_total",
			"Objects omitted because they cannot be encoded or have no comparable resourceVersion."),
		skipped: counter("skipped_versions_total", "Versions of workloads dropped because too many waited."),
		resyncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_watcher_resyncs_total", Help: "Full resyncs by cause and scope; the scope of workspaces is empty.",
		}, []string{"cause", "scope"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lockstep_watcher_resync_duration_seconds", Help: "Duration of full resyncs, from the first list to the end.",
			Buckets: prometheus.ExponentialBuckets(0.05, 3, 9),
		}),
		sessions: counter("terms_total", "Leader sessions that this process started."),
	}
	for _, cause := range []events.ResyncCause{
		events.ResyncCauseStart, events.ResyncCauseLeaderElected, events.ResyncCauseInterval,
		events.ResyncCauseConfigChanged, events.ResyncCauseRequested,
	} {
		m.resyncs.WithLabelValues(string(cause), "")
	}
	collectors := []prometheus.Collector{
		m.published, m.acked, m.retried, m.rejected, m.malformed, m.skipped, m.resyncs, m.duration, m.sessions,
		gauge("leader", "1 while this process is the leader.", func(*Session) float64 { return 1 }),
		gauge("objects", "Known objects.", func(s *Session) float64 { return float64(s.Objects()) }),
		gauge("backlog", "Objects that are not published or not acknowledged yet.", func(s *Session) float64 {
			pending, _ := s.Backlog()
			return float64(pending)
		}),
		gauge("backlog_age_seconds", "How long the oldest object of the backlog waits.", func(s *Session) float64 {
			_, age := s.Backlog()
			return age.Seconds()
		}),
	}
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// SessionStarted counts a leader session.
func (m *Metrics) SessionStarted() { m.sessions.Inc() }
