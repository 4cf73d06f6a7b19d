package cursor

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of all consumers of a process, with the labels consumer and stream.
type Metrics struct {
	handled     *prometheus.CounterVec
	deadLetters *prometheus.CounterVec
	failures    *prometheus.CounterVec
	restarts    *prometheus.CounterVec
	lag         *prometheus.GaugeVec
	active      *prometheus.GaugeVec
	seconds     *prometheus.HistogramVec
}

// NewMetrics creates and registers the metrics.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := newMetrics()
	for _, c := range []prometheus.Collector{
		m.handled, m.deadLetters, m.failures, m.restarts, m.lag, m.active, m.seconds,
	} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register the cursor's metrics: %w", err)
		}
	}
	return m, nil
}

func newMetrics() *Metrics {
	const namespace, subsystem = "lockstep", "cursor"
	labels := []string{"consumer", "stream"}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
		}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
		}, labels)
	}
	return &Metrics{
		handled:     counter("handled_total", "Messages committed together with the cursor."),
		deadLetters: counter("dead_total", "Messages published to DEAD."),
		failures:    counter("failures_total", "Retried failures of the handler, the database, NATS, or publishing to DEAD."),
		restarts:    counter("restarts_total", "How often the stream was read from its start."),
		lag:         gauge("lag", "Unread messages in the stream when the last handled message was received."),
		active:      gauge("active", "1 in the replica that holds the reader lock, else 0."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "transaction_seconds", Help: "Duration of a batch's transaction.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, labels),
	}
}
