package outbox

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of a publisher.
type Metrics struct {
	published prometheus.Counter
	conflicts prometheus.Counter
	failures  prometheus.Counter
	restored  prometheus.Counter
	waiting   prometheus.Gauge
	oldest    prometheus.Gauge
	active    prometheus.Gauge
}

// NewMetrics creates and registers the metrics.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := newMetrics()
	collectors := []prometheus.Collector{m.published, m.conflicts, m.failures, m.restored, m.waiting, m.oldest, m.active}
	for _, c := range collectors {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register the outbox's metrics: %w", err)
		}
	}
	return m, nil
}

func newMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "lockstep", Subsystem: "outbox", Name: name, Help: help,
		})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "lockstep", Subsystem: "outbox", Name: name, Help: help,
		})
	}
	return &Metrics{
		published: counter("published_total", "Messages acknowledged by JetStream and removed from the outbox."),
		conflicts: counter("conflicts_total", "Publishes rejected with wrong last sequence."),
		failures:  counter("failures_total", "Failed publishes; each is retried."),
		restored:  counter("restored_total", "Restorations of a stream or the database from an older copy."),
		waiting:   gauge("waiting", "Unpublished messages at the last read of the active publisher, at most one batch."),
		oldest:    gauge("oldest_seconds", "Age of the oldest message at the last read of the active publisher."),
		active:    gauge("active", "1 in the replica that holds the publisher lock, else 0."),
	}
}
