package forward

import "github.com/prometheus/client_golang/prometheus"

func newDurations() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "lockstep_relay_request_duration_seconds",
		Help:    "Duration of requests to agents, without long-running ones: watches, followed logs, upgrades and TCP.",
		Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60},
	}, []string{"protocol", "code"})
}

// Metrics has the durations of requests, by protocol and status class.
func (h *Handler) Metrics() prometheus.Collector { return h.durations }

// statusClass returns the class of a status, such as 2xx; none without a response.
func statusClass(status int) string {
	classes := [...]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"}
	if class := status / 100; class < len(classes) {
		return classes[class]
	}
	return classes[0]
}
