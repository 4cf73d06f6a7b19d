// Package metrics contains the Prometheus metrics of the packages ingest and publish.
package metrics

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/schemas/gen/events"
)

// Metrics counts observations and facts. Methods of a nil Metrics do nothing. They are safe for concurrent use.
type Metrics struct {
	facts           *prometheus.CounterVec
	resyncs         *prometheus.CounterVec
	previousCluster prometheus.Counter
	foreign         prometheus.Counter
	releases        prometheus.Counter
	refused         prometheus.Counter
	conflicts       prometheus.Counter
	divergences     prometheus.Counter
	republished     prometheus.Counter
	published       prometheus.Counter
	seconds         prometheus.Histogram
}

// New returns registered metrics.
func New(registerer prometheus.Registerer) (*Metrics, error) {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "lockstep", Subsystem: "deploys", Name: name, Help: help}
	}
	m := &Metrics{
		facts: prometheus.NewCounterVec(opts("facts_total",
			"Detected facts, by fact and kind of workload; a repeated batch counts again."), []string{"fact", "kind"}),
		resyncs: prometheus.NewCounterVec(opts("resyncs_total",
			"Ended full resyncs, by outcome: complete, or incomplete if members are missing and absence is ignored."),
			[]string{"outcome"}),
		previousCluster: prometheus.NewCounter(opts("strays_total",
			"Dropped observations of clusters that their agents have left.")),
		foreign: prometheus.NewCounter(opts("foreign_total",
			"Messages by agents about clusters of other projects: ticks are dropped, others are dead-lettered.")),
		releases: prometheus.NewCounter(opts("releases_total", "Clusters released from their projects.")),
		refused: prometheus.NewCounter(opts("rows_refused_total",
			"New rows that were not stored, because their agent has as many as one may have.")),
		conflicts: prometheus.NewCounter(opts("conflicts_total",
			"Facts that the stream refused because its newest message was not the expected one.")),
		divergences: prometheus.NewCounter(opts("divergences_total",
			"Workloads for which the stream had facts that the database lacked.")),
		republished: prometheus.NewCounter(opts("republished_total", "Facts republished because the stream had lost them.")),
		published:   prometheus.NewCounter(opts("published_total", "Facts that the stream stored.")),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "lockstep", Subsystem: "deploys", Name: "publish_seconds",
			Help:    "Time from sending a fact to its acknowledgement.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1, 5},
		}),
	}
	for _, c := range []prometheus.Collector{
		m.facts, m.resyncs, m.previousCluster, m.foreign, m.releases, m.refused, m.conflicts, m.divergences, m.republished,
		m.published, m.seconds,
	} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// Fact counts a detected fact.
func (m *Metrics) Fact(f *events.DeployFact) {
	if m != nil {
		m.facts.WithLabelValues(string(f.Fact), f.Workload.Kind).Inc()
	}
}

// Resync counts the end of a full resync.
func (m *Metrics) Resync(complete bool) {
	if m == nil {
		return
	}
	outcome := "incomplete"
	if complete {
		outcome = "complete"
	}
	m.resyncs.WithLabelValues(outcome).Inc()
}

// PreviousCluster counts a dropped observation of a cluster that its agent has left.
func (m *Metrics) PreviousCluster() {
	if m != nil {
		m.previousCluster.Inc()
	}
}

// Foreign counts a message about a cluster of another project.
func (m *Metrics) Foreign() {
	if m != nil {
		m.foreign.Inc()
	}
}

// Release counts the release of a cluster.
func (m *Metrics) Release() {
	if m != nil {
		m.releases.Inc()
	}
}

// Refused counts rows of an agent that has as many as it may have.
func (m *Metrics) Refused(rows int) {
	if m != nil {
		m.refused.Add(float64(rows))
	}
}

// Conflict counts a fact that the stream refused.
func (m *Metrics) Conflict() {
	if m != nil {
		m.conflicts.Inc()
	}
}

// Divergence counts a workload of which the stream has facts that the database lacks.
func (m *Metrics) Divergence() {
	if m != nil {
		m.divergences.Inc()
	}
}

// Republished counts republished facts.
func (m *Metrics) Republished(count int) {
	if m != nil {
		m.republished.Add(float64(count))
	}
}

// Published counts a published fact and the time until its acknowledgement.
func (m *Metrics) Published(took time.Duration) {
	if m != nil {
		m.published.Inc()
		m.seconds.Observe(took.Seconds())
	}
}
