package proxy

import "github.com/prometheus/client_golang/prometheus"

// newDurations makes the metric of how long requests take that are answered at once: those that last would hide them.
func newDurations() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "lockstep_relay_request_duration_seconds",
		Help:    "How long requests to agents took from their head to the end of their answer, but for those that last: watches, followed logs, upgrades and TCP.",
		Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60},
	}, []string{"protocol", "code"})
}

// Metrics are how long requests took, by protocol and class of the answer's status.
func (h *Handler) Metrics() prometheus.Collector { return h.durations }

// class of a status; none is that there was no answer.
func class(status int) string {
	const first, last = 1, 5
	if n := status / 100; n >= first && n <= last {
		return [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}[n-first]
	}
	return "none"
}
