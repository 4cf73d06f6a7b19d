package processes

import "github.com/prometheus/client_golang/prometheus"

// Results of questions, in the metric lockstep_gateway_process_checks_total.
const (
	resultWorking = "working"
	resultIdle    = "idle"
	resultFailed  = "failed"
)

type metrics struct{ checks *prometheus.CounterVec }

func newMetrics() metrics {
	m := metrics{checks: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lockstep_gateway_process_checks_total",
		Help: "Questions to workspaces whether programs of people work: working, idle, or failed without an answer.",
	}, []string{"result"})}
	for _, result := range []string{resultWorking, resultIdle, resultFailed} {
		m.checks.WithLabelValues(result)
	}
	return m
}

// Describe implements [prometheus.Collector].
func (m metrics) Describe(to chan<- *prometheus.Desc) { m.checks.Describe(to) }

// Collect implements [prometheus.Collector].
func (m metrics) Collect(to chan<- prometheus.Metric) { m.checks.Collect(to) }
