package postgres

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of decisions.
type Metrics struct{ decided *prometheus.CounterVec }

// NewMetrics creates and registers the metrics.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{decided: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "lockstep", Subsystem: "admission", Name: "decisions_total",
		Help: "Decisions about jobs, by outcome: admitted, rejected or canceled; and by the cause of a rejection.",
	}, []string{"outcome", "cause"})}
	if err := registerer.Register(m.decided); err != nil {
		return nil, fmt.Errorf("register the metrics of decisions: %w", err)
	}
	return m, nil
}
