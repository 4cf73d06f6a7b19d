package sink

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of all sinks of a process, told apart by the label sink.
type Metrics struct {
	facts    *prometheus.CounterVec
	failures *prometheus.CounterVec
	waiting  *prometheus.GaugeVec
	lag      *prometheus.GaugeVec
	seconds  *prometheus.HistogramVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := newMetrics()
	for _, c := range []prometheus.Collector{m.facts, m.failures, m.waiting, m.lag, m.seconds} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register the sinks' metrics: %w", err)
		}
	}
	return m, nil
}

func newMetrics() *Metrics {
	const namespace, subsystem = "lockstep", "sink"
	labels := []string{"sink"}
	return &Metrics{
		facts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "facts_total",
			Help: "Facts done with, by outcome: delivered, combined (into a later one of its thread), dead, known (delivered before), not_selected.",
		}, []string{"sink", "outcome"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "failures_total", Help: "Attempts to deliver that failed.",
		}, labels),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "waiting", Help: "Facts that this replica has taken and is not done with.",
		}, labels),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "lag", Help: "Facts on DEPLOYS that are not taken yet.",
		}, labels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "delivery_seconds", Help: "Duration of an attempt to deliver, waiting for limits left out of it or not as the destination has it.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, labels),
	}
}
