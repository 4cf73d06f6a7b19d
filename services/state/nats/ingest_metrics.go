package nats

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
)

// IngestMetrics count what the streams bring. A nil one counts nothing.
type IngestMetrics struct {
	resyncs    *prometheus.CounterVec
	dispatches *prometheus.CounterVec
	unexpected *prometheus.CounterVec
	orphans    prometheus.Counter
	strays     prometheus.Counter
}

// NewIngestMetrics makes the metrics and registers them.
func NewIngestMetrics(registerer prometheus.Registerer) (*IngestMetrics, error) {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "lockstep", Subsystem: "state", Name: name, Help: help}
	}
	m := &IngestMetrics{
		resyncs:    prometheus.NewCounterVec(opts("resyncs_total", "Full resyncs that ended, by outcome: complete, or incomplete when members are missing and nothing is judged."), []string{"outcome"}),
		dispatches: prometheus.NewCounterVec(opts("dispatches_total", "Revisions that the system itself made, by cause."), []string{"cause"}),
		unexpected: prometheus.NewCounterVec(opts("unexpected_changes_total", "Changes of actual states that the state diagram does not know."), []string{"from", "to"}),
		orphans:    prometheus.NewCounter(opts("orphans_total", "Deployments seen with the label of a workspace that does not exist.")),
		strays:     prometheus.NewCounter(opts("strays_total", "Observations of clusters that their agents are no longer in, which are dropped.")),
	}
	for _, c := range []prometheus.Collector{m.resyncs, m.dispatches, m.unexpected, m.orphans, m.strays} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of ingest: %w", err)
		}
	}
	return m, nil
}

// Unexpected counts a change that the state diagram does not know; see postgres.Workspaces.
func (m *IngestMetrics) Unexpected(from, to domain.ActualState) {
	if m != nil {
		m.unexpected.WithLabelValues(string(from), string(to)).Inc()
	}
}

func (m *IngestMetrics) resync(complete bool) {
	if m == nil {
		return
	}
	outcome := "incomplete"
	if complete {
		outcome = "complete"
	}
	m.resyncs.WithLabelValues(outcome).Inc()
}

func (m *IngestMetrics) dispatched(cause events.DesiredStateCause) {
	if m != nil {
		m.dispatches.WithLabelValues(string(cause)).Inc()
	}
}

func (m *IngestMetrics) orphan() {
	if m != nil {
		m.orphans.Inc()
	}
}

func (m *IngestMetrics) stray() {
	if m != nil {
		m.strays.Inc()
	}
}
