package forward

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/libs/topology"
)

// result is what happened to a request.
type result string

const (
	// forwarded: the client got the response of the cell.
	forwarded result = "forwarded"
	// redirected: the client got the address of the cell.
	redirected result = "redirected"
	// invalid: the request cannot be forwarded.
	invalid result = "invalid"
	// refused: no cell accepts the token.
	refused result = "refused"
	// unknown: the map does not have the cell of the token at the moment, or is not loaded.
	unknown result = "unknown"
	// maintenance: the cell is in maintenance.
	maintenance result = "maintenance"
	// limited: above the limit of concurrent requests of the cell, or of bodies.
	limited result = "limited"
	// open: the circuit breaker of the cell refused the request.
	open result = "open"
	// failed: the cell could not be reached, or the connection was lost.
	failed result = "failed"
	// aborted: the response of the cell was not completed.
	aborted result = "aborted"
	// canceled: the client did not complete the request or did not wait for the response.
	canceled result = "canceled"
)

// metrics of requests. The label cell is a name of the map, never one of a token alone.
type metrics struct {
	requests  *prometheus.CounterVec
	responses *prometheus.HistogramVec
	breakers  *prometheus.CounterVec

	inflight, open *prometheus.Desc
}

func newMetrics() *metrics {
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_router_requests_total", Help: "Requests by cell and result.",
		}, []string{"cell", "result"}),
		responses: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_router_response_duration_seconds",
			Help: "Time until the response of a cell begins. It includes how long requests for jobs wait in the cell.",
			// Requests for jobs wait for 50 s by default and up to 10 min.
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 600},
		}, []string{"cell"}),
		breakers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_router_breaker_opened_total", Help: "How often the circuit breaker of a cell opened.",
		}, []string{"cell"}),
		inflight: prometheus.NewDesc("lockstep_router_requests_in_flight", "Requests in progress at a cell.",
			[]string{"cell"}, nil),
		open: prometheus.NewDesc("lockstep_router_breaker_open",
			"Whether the circuit breaker of a cell refuses requests.", []string{"cell"}, nil),
	}
}

func (m *metrics) count(cell topology.Cell, r result) {
	m.requests.WithLabelValues(string(cell), string(r)).Inc()
}

func (m *metrics) responded(cell topology.Cell, after time.Duration) {
	m.responses.WithLabelValues(string(cell)).Observe(after.Seconds())
}

func (m *metrics) opened(cell topology.Cell) { m.breakers.WithLabelValues(string(cell)).Inc() }

// remove removes the metrics of a cell.
func (m *metrics) remove(cell topology.Cell) {
	labels := prometheus.Labels{"cell": string(cell)}
	m.requests.DeletePartialMatch(labels)
	m.responses.DeletePartialMatch(labels)
	m.breakers.DeletePartialMatch(labels)
}

// Describe implements [prometheus.Collector].
func (h *Handler) Describe(ch chan<- *prometheus.Desc) {
	h.metrics.requests.Describe(ch)
	h.metrics.responses.Describe(ch)
	h.metrics.breakers.Describe(ch)
	ch <- h.metrics.inflight
	ch <- h.metrics.open
}

// Collect implements [prometheus.Collector].
func (h *Handler) Collect(ch chan<- prometheus.Metric) {
	h.metrics.requests.Collect(ch)
	h.metrics.responses.Collect(ch)
	h.metrics.breakers.Collect(ch)
	for _, known := range h.upstreams.all() {
		isOpen := 0.0
		if known.open() {
			isOpen = 1
		}
		ch <- prometheus.MustNewConstMetric(h.metrics.inflight, prometheus.GaugeValue,
			float64(known.inflight.Load()), string(known.name))
		ch <- prometheus.MustNewConstMetric(h.metrics.open, prometheus.GaugeValue, isOpen, string(known.name))
	}
}
