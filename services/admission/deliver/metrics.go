package deliver

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/services/admission/chain"
)

// Metrics are the metrics of requests to controllers, and of the jobs that wait for them.
type Metrics struct {
	requests *prometheus.HistogramVec
	breakers prometheus.Gauge
	waiting  prometheus.Gauge
}

// NewMetrics creates and registers the metrics.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "lockstep", Subsystem: "admission", Name: "request_seconds",
			Help:    "Time of requests to controllers, by result: answered, later or failed.",
			Buckets: prometheus.ExponentialBuckets(0.005, 3, 9), //nolint:mnd // 5 ms to 33 s
		}, []string{"result"}),
		breakers: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "lockstep", Subsystem: "admission", Name: "open_breakers",
			Help: "Controllers that are not asked by this replica, because they failed several times in a row.",
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "lockstep", Subsystem: "admission", Name: "waiting_jobs",
			Help: "Jobs of the cell that wait for a decision. Every replica reports all of them.",
		}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.breakers, m.waiting} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of admission: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) observe(r response, took time.Duration) {
	result := "answered"
	switch r.input.(type) {
	case nil:
		result = "later"
	case chain.Failed:
		result = "failed"
	}
	m.requests.WithLabelValues(result).Observe(took.Seconds())
}
