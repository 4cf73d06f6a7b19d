// Package metrics contains the Prometheus metrics of the dispatcher.
package metrics

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/services/dispatcher/queue"
)

// Leader is the state of the process while it leads.
type Leader interface {
	// Depth returns the numbers of queued and running tasks.
	Depth() queue.Depth
	// WaitingResults returns the number of results without an acknowledgement.
	WaitingResults() int
}

// Metrics are the metrics of the dispatcher. They are safe for concurrent use.
type Metrics struct {
	Applied    prometheus.Counter
	Terminated prometheus.Counter
	Failed     *prometheus.CounterVec // by reason
	Dropped    prometheus.Counter
	Repairs    prometheus.Counter
	Repaired   prometheus.Counter
	Duration   prometheus.Histogram
	Latency    prometheus.Histogram
	leading    prometheus.Gauge

	mu           sync.Mutex
	leader       Leader // nil in a standby
	terminations map[string]bool
}

// New returns registered metrics.
func New(registerer prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "lockstep", Subsystem: "dispatcher", Name: name, Help: help,
		})
	}
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "lockstep", Subsystem: "dispatcher", Name: name, Help: help,
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		})
	}
	m := &Metrics{
		Applied:    counter("applied_total", "Revisions applied without an error."),
		Terminated: counter("terminated_total", "Completely terminated workspaces."),
		Failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "lockstep",
			Subsystem: "dispatcher",
			Name:      "failed_total",
			Help:      "Failed attempts and rejected desired states, by reason.",
		}, []string{"reason"}),
		Dropped: counter("dropped_total", "Dropped desired states without a readable workspace or revision."),
		Repairs: counter("repairs_total", "Repairs of all workspaces."),
		Repaired: counter(
			"repaired_total", "Objects that a repair applied again because another program had changed or deleted them.",
		),
		Duration: histogram("apply_duration_seconds", "Duration of applying a revision."),
		Latency: histogram(
			"latency_seconds", "Seconds from receiving a desired state to applying it, if the first attempt succeeds.",
		),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "lockstep",
			Subsystem: "dispatcher",
			Name:      "leading",
			Help:      "1 in the dispatcher that holds the lease, else 0.",
		}),
		terminations: map[string]bool{},
	}
	collectors := []prometheus.Collector{
		m.Applied, m.Terminated, m.Failed, m.Dropped, m.Repairs, m.Repaired, m.Duration, m.Latency, m.leading,
	}
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) {
		collectors = append(collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "lockstep", Subsystem: "dispatcher", Name: name, Help: help, ConstLabels: labels,
		}, value))
	}
	const depth = "Workspaces that wait for a worker (fresh), the next attempt (later) or a repair (repair), " +
		"or are being applied (running)."
	for _, state := range []string{"fresh", "later", "repair", "running"} {
		gauge("queue_depth", depth, prometheus.Labels{"state": state}, func() float64 { return m.depth(state) })
	}
	gauge("results_waiting", "Results without an acknowledgement of NATS.", nil, func() float64 {
		if leader := m.currentLeader(); leader != nil {
			return float64(leader.WaitingResults())
		}
		return 0
	})
	gauge("terminations_in_progress", "Workspaces whose objects are being deleted.", nil, func() float64 {
		m.mu.Lock()
		defer m.mu.Unlock()
		return float64(len(m.terminations))
	})
	for _, collector := range collectors {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) depth(state string) float64 {
	leader := m.currentLeader()
	if leader == nil {
		return 0
	}
	depth := leader.Depth()
	switch state {
	case "fresh":
		return float64(depth.Pending)
	case "later":
		return float64(depth.Delayed)
	case "repair":
		return float64(depth.Repair)
	default:
		return float64(depth.Running)
	}
}

func (m *Metrics) currentLeader() Leader {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leader
}

// SetLeader sets the state of the leader, or nil when this process becomes a standby.
func (m *Metrics) SetLeader(leader Leader) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leader, m.terminations = leader, map[string]bool{}
	m.leading.Set(0)
	if leader != nil {
		m.leading.Set(1)
	}
}

// TerminationStarted counts a workspace whose objects are being deleted.
func (m *Metrics) TerminationStarted(workspace string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.terminations[workspace] = true
}

// TerminationEnded stops counting the workspace.
func (m *Metrics) TerminationEnded(workspace string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.terminations, workspace)
}
