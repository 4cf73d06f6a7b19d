package sink

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of all sinks of a process, with the label sink.
type Metrics struct {
	facts    *prometheus.CounterVec
	failures *prometheus.CounterVec
	pending  *prometheus.GaugeVec
	lag      *prometheus.GaugeVec
	seconds  *prometheus.HistogramVec
}

// NewMetrics returns registered metrics.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := newMetrics()
	for _, c := range []prometheus.Collector{m.facts, m.failures, m.pending, m.lag, m.seconds} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of the sinks: %w", err)
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
			Help: "Finished facts by outcome: delivered, combined (into a later fact of the thread), dead, " +
				"known (delivered before), not_selected.",
		}, []string{"sink", "outcome"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "failures_total", Help: "Failed delivery attempts.",
		}, labels),
		pending: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "waiting",
			Help: "Unfinished facts that this replica has received.",
		}, labels),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "lag", Help: "Facts on DEPLOYS that no replica has received.",
		}, labels),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "delivery_seconds",
			Help:    "Duration of a delivery attempt. Some types of sinks include the wait for rate limits.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, labels),
	}
}
