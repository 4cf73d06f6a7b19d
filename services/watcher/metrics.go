package watcher

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/schemas/gen/events"
)

// metrics of one watcher process.
type metrics struct {
	published *prometheus.CounterVec
	acked     prometheus.Counter
	retried   prometheus.Counter
	rejected  prometheus.Counter
	malformed prometheus.Counter
	skipped   prometheus.Counter
	resyncs   *prometheus.CounterVec
	duration  prometheus.Histogram
	terms     prometheus.Counter
}

// newMetrics registers the metrics. What describes the term is asked of current, which may return nil.
func newMetrics(registry prometheus.Registerer, current func() *term) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "lockstep_watcher_" + name, Help: help})
	}
	gauge := func(name, help string, value func(*term) float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lockstep_watcher_" + name, Help: help}, func() float64 {
			if t := current(); t != nil {
				return value(t)
			}
			return 0
		})
	}
	m := &metrics{
		published: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_watcher_published_total", Help: "Observations sent, by kind and whether partial or full.",
		}, []string{"kind", "update_type"}),
		acked:     counter("acked_total", "Observations that the stream acknowledged."),
		retried:   counter("retried_total", "Observations that failed and are sent again."),
		rejected:  counter("rejected_total", "Observations too large to be sent."),
		malformed: counter("malformed_total", "Objects that cannot be told as an event."),
		skipped:   counter("skipped_versions_total", "Versions of workloads that were seen and could not be told, because too many waited."),
		resyncs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_watcher_resyncs_total", Help: "Full resyncs sent whole, by cause, and by what they cover: workloads, or what workspaces consist of.",
		}, []string{"cause", "scope"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lockstep_watcher_resync_duration_seconds", Help: "How long full resyncs took, from listing to their end.",
			Buckets: prometheus.ExponentialBuckets(0.05, 3, 9),
		}),
		terms: counter("terms_total", "How often this process became the leader."),
	}
	for _, cause := range []events.ResyncCause{
		events.ResyncCauseStart, events.ResyncCauseLeaderElected, events.ResyncCauseInterval, events.ResyncCauseConfigChanged, events.ResyncCauseRequested,
	} {
		m.resyncs.WithLabelValues(string(cause), "")
	}
	collectors := []prometheus.Collector{
		m.published, m.acked, m.retried, m.rejected, m.malformed, m.skipped, m.resyncs, m.duration, m.terms,
		gauge("leader", "Whether this process reports.", func(*term) float64 { return 1 }),
		gauge("objects", "Objects known.", func(t *term) float64 { return float64(t.size()) }),
		gauge("backlog", "Objects that are to be sent or not yet acknowledged.", func(t *term) float64 { owed, _ := t.backlog(); return float64(owed) }),
		gauge("backlog_age_seconds", "How long the oldest of the backlog waits.", func(t *term) float64 { _, age := t.backlog(); return age.Seconds() }),
	}
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}
