package sshfront

import "github.com/prometheus/client_golang/prometheus"

// Reasons of refusals, in the metric lockstep_gateway_ssh_refused_total.
const (
	refusedConnections = "connections"
	refusedFailures    = "failures"
	refusedHandshake   = "handshake"
)

// metrics of a server.
type metrics struct {
	connections prometheus.Gauge
	refused     *prometheus.CounterVec
}

func newMetrics() metrics {
	m := metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lockstep_gateway_ssh_connections", Help: "SSH connections of people that have authenticated.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_gateway_ssh_refused_total",
			Help: "SSH connections that were refused: too many, too many failures of the address, or not authenticated.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{refusedConnections, refusedFailures, refusedHandshake} {
		m.refused.WithLabelValues(reason)
	}
	return m
}

// Describe implements [prometheus.Collector].
func (m metrics) Describe(to chan<- *prometheus.Desc) {
	m.connections.Describe(to)
	m.refused.Describe(to)
}

// Collect implements [prometheus.Collector].
func (m metrics) Collect(to chan<- prometheus.Metric) {
	m.connections.Collect(to)
	m.refused.Collect(to)
}
