package assign

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of an [Assigner].
type Metrics struct {
	requests prometheus.Gauge
	claims   *prometheus.CounterVec
}

// NewMetrics returns registered metrics.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := newMetrics()
	for _, c := range []prometheus.Collector{m.requests, m.claims} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func newMetrics() *Metrics {
	return &Metrics{
		requests: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "lockstep", Subsystem: "runners", Name: "waiting_requests",
			Help: "Requests of runners that wait for a job on this replica.",
		}),
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "lockstep", Subsystem: "runners", Name: "claims_total",
			Help: "Jobs that a runner took, by result: stored, or lost if the job had changed meanwhile.",
		}, []string{"result"}),
	}
}

func (m *Metrics) waiting(n float64) { m.requests.Add(n) }

func (m *Metrics) claimed(stored, lost int) {
	m.claims.WithLabelValues("stored").Add(float64(stored))
	m.claims.WithLabelValues("lost").Add(float64(lost))
}
