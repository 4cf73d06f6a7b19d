package ingest

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/schemas/gen/events"
)

// Metrics are the counters of package ingest. A nil *Metrics is valid and counts nothing.
type Metrics struct {
	resyncs    *prometheus.CounterVec
	dispatches *prometheus.CounterVec
	warnings   *prometheus.CounterVec
	unexpected *prometheus.CounterVec
	orphans    prometheus.Counter
	stale      prometheus.Counter
	jumps      prometheus.Counter
	refused    prometheus.Counter
}

// NewMetrics creates and registers the metrics.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "lockstep", Subsystem: "state", Name: name, Help: help}
	}
	m := &Metrics{
		resyncs: prometheus.NewCounterVec(opts("resyncs_total",
			"Ended full resyncs by outcome. An incomplete resync deletes nothing."), []string{"outcome"}),
		dispatches: prometheus.NewCounterVec(opts("dispatches_total",
			"Desired revisions created by the system, not by a user, by cause."), []string{"cause"}),
		warnings: prometheus.NewCounterVec(opts("expiry_warnings_total",
			"Warnings that a policy will stop or terminate a workspace, by policy."), []string{"policy"}),
		unexpected: prometheus.NewCounterVec(opts("unexpected_changes_total",
			"Actual state changes that are not in the state diagram."), []string{"from", "to"}),
		orphans: prometheus.NewCounter(opts("orphans_total",
			"Deployments reported with the label of an unknown workspace.")),
		stale: prometheus.NewCounter(opts("strays_total",
			"Events dropped because they are not from the agent's current cluster.")),
		jumps: prometheus.NewCounter(opts("clock_jumps_total",
			"Changes of an agent's clock by more than a minute between two ticks.")),
		refused: prometheus.NewCounter(opts("objects_refused_total",
			"New objects that were not stored, because their agent has as many as one may have.")),
	}
	for _, c := range []prometheus.Collector{
		m.resyncs, m.dispatches, m.warnings, m.unexpected, m.orphans, m.stale, m.jumps, m.refused,
	} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register the ingest metrics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) unexpectedChange(from, to events.ActualState) {
	if m != nil {
		m.unexpected.WithLabelValues(string(from), string(to)).Inc()
	}
}

func (m *Metrics) resyncEnded(complete bool) {
	if m == nil {
		return
	}
	outcome := "incomplete"
	if complete {
		outcome = "complete"
	}
	m.resyncs.WithLabelValues(outcome).Inc()
}

func (m *Metrics) dispatched(cause events.DesiredStateCause) {
	if m != nil {
		m.dispatches.WithLabelValues(string(cause)).Inc()
	}
}

func (m *Metrics) warned(policy events.ExpiryPolicy) {
	if m != nil {
		m.warnings.WithLabelValues(string(policy)).Inc()
	}
}

func (m *Metrics) orphanFound() {
	if m != nil {
		m.orphans.Inc()
	}
}

func (m *Metrics) clockJumped() {
	if m != nil {
		m.jumps.Inc()
	}
}

func (m *Metrics) refusedObjects(n int64) {
	if m != nil {
		m.refused.Add(float64(n))
	}
}

func (m *Metrics) droppedStale() {
	if m != nil {
		m.stale.Inc()
	}
}
