package nats

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/schemas/gen/events"
)

// Metrics count what the reader finds and tells. A nil one counts nothing.
type Metrics struct {
	facts       *prometheus.CounterVec
	resyncs     *prometheus.CounterVec
	strays      prometheus.Counter
	foreigners  prometheus.Counter
	releases    prometheus.Counter
	conflicts   prometheus.Counter
	divergences prometheus.Counter
	again       prometheus.Counter
	published   prometheus.Counter
	seconds     prometheus.Histogram
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	opts := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "lockstep", Subsystem: "deploys", Name: name, Help: help}
	}
	m := &Metrics{
		facts:       prometheus.NewCounterVec(opts("facts_total", "Facts that were concluded, by fact and kind of workload; those of a batch that is repeated count again."), []string{"fact", "kind"}),
		resyncs:     prometheus.NewCounterVec(opts("resyncs_total", "Full resyncs that ended, by outcome: complete, or incomplete when members are missing and nothing is judged."), []string{"outcome"}),
		strays:      prometheus.NewCounter(opts("strays_total", "Observations of clusters that their agents are no longer in, which are dropped.")),
		foreigners:  prometheus.NewCounter(opts("foreign_total", "Messages of agents about clusters of other projects: clocks, which are dropped, and others, which are put on DEAD.")),
		releases:    prometheus.NewCounter(opts("releases_total", "Clusters that were released from their projects.")),
		conflicts:   prometheus.NewCounter(opts("conflicts_total", "Facts that the stream refused because it had others than was expected.")),
		divergences: prometheus.NewCounter(opts("divergences_total", "Workloads of which the stream knew facts that the database did not.")),
		again:       prometheus.NewCounter(opts("retold_total", "Facts that were told again because the stream had lost them.")),
		published:   prometheus.NewCounter(opts("published_total", "Facts that the stream took.")),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "lockstep", Subsystem: "deploys", Name: "publish_seconds", Help: "Time from sending a fact to its acknowledgement.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1, 5},
		}),
	}
	for _, c := range []prometheus.Collector{m.facts, m.resyncs, m.strays, m.foreigners, m.releases, m.conflicts, m.divergences, m.again, m.published, m.seconds} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register the metrics of ingest: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) fact(f *events.DeployFact) {
	if m != nil {
		m.facts.WithLabelValues(string(f.Fact), f.Workload.Kind).Inc()
	}
}

func (m *Metrics) resync(complete bool) {
	if m == nil {
		return
	}
	outcome := "incomplete"
	if complete {
		outcome = "complete"
	}
	m.resyncs.WithLabelValues(outcome).Inc()
}

func (m *Metrics) stray() {
	if m != nil {
		m.strays.Inc()
	}
}

func (m *Metrics) foreign() {
	if m != nil {
		m.foreigners.Inc()
	}
}

func (m *Metrics) release() {
	if m != nil {
		m.releases.Inc()
	}
}

func (m *Metrics) conflict() {
	if m != nil {
		m.conflicts.Inc()
	}
}

func (m *Metrics) divergence() {
	if m != nil {
		m.divergences.Inc()
	}
}

func (m *Metrics) retold(facts int) {
	if m != nil {
		m.again.Add(float64(facts))
	}
}

func (m *Metrics) told(took time.Duration) {
	if m != nil {
		m.published.Inc()
		m.seconds.Observe(took.Seconds())
	}
}
