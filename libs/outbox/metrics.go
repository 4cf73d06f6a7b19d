package outbox

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of a publisher.
type Metrics struct {
	published prometheus.Counter
	conflicts prometheus.Counter
	failures  prometheus.Counter
	restored  prometheus.Counter
	waiting   prometheus.Gauge
	oldest    prometheus.Gauge
	active    prometheus.Gauge
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := newMetrics()
	for _, c := range []prometheus.Collector{m.published, m.conflicts, m.failures, m.restored, m.waiting, m.oldest, m.active} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register the outbox's metrics: %w", err)
		}
	}
	return m, nil
}

func newMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "lockstep", Subsystem: "outbox", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "lockstep", Subsystem: "outbox", Name: name, Help: help})
	}
	return &Metrics{
		published: counter("published_total", "Messages acknowledged by JetStream and removed from the outbox."),
		conflicts: counter("conflicts_total", "Publishes refused because the subject's last sequence was another, and resolved by reading it."),
		failures:  counter("failures_total", "Publishes that failed and are repeated."),
		restored:  counter("restored_total", "Streams or databases found to be restored from an older copy."),
		waiting:   gauge("waiting", "Messages in the outbox when the active publisher last looked, at most one batch."),
		oldest:    gauge("oldest_seconds", "Age of the oldest message when the active publisher last looked."),
		active:    gauge("active", "1 in the replica that publishes, else 0."),
	}
}
