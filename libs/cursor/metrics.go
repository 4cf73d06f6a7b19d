package cursor

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of all consumers of a process, told apart by the labels consumer and stream.
type Metrics struct {
	handled  *prometheus.CounterVec
	dead     *prometheus.CounterVec
	failures *prometheus.CounterVec
	restarts *prometheus.CounterVec
	lag      *prometheus.GaugeVec
	active   *prometheus.GaugeVec
	seconds  *prometheus.HistogramVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := newMetrics()
	for _, c := range []prometheus.Collector{m.handled, m.dead, m.failures, m.restarts, m.lag, m.active, m.seconds} {
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
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	return &Metrics{
		handled:  counter("handled_total", "Messages whose effect and cursor are committed."),
		dead:     counter("dead_total", "Messages put on DEAD."),
		failures: counter("failures_total", "Failures that are retried: of the handler, the database, NATS, or the writing of DEAD."),
		restarts: counter("restarts_total", "Epochs begun: the stream is read from the start."),
		lag:      gauge("lag", "Messages of the partition after the last one handled, when that was read."),
		active:   gauge("active", "1 in the replica that reads, else 0."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "transaction_seconds", Help: "Duration of a batch's transaction.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}, labels),
	}
}
