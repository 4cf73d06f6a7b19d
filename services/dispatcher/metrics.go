package dispatcher

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of the dispatcher.
type metrics struct {
	applied    prometheus.Counter
	terminated prometheus.Counter
	failed     *prometheus.CounterVec
	dropped    prometheus.Counter
	repairs    prometheus.Counter
	repaired   prometheus.Counter
	duration   prometheus.Histogram
	latency    prometheus.Histogram
	leading    prometheus.Gauge
	current    atomic.Pointer[leaderSession] // nil in a standby

	mu           sync.Mutex
	terminations map[string]bool
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
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
	m := &metrics{
		applied:    counter("applied_total", "Completely applied revisions."),
		terminated: counter("terminated_total", "Completely terminated workspaces."),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "lockstep",
			Subsystem: "dispatcher",
			Name:      "failed_total",
			Help:      "Failed and refused attempts, by reason.",
		}, []string{"reason"}),
		dropped: counter("dropped_total", "Dropped desired states without a readable workspace or revision."),
		repairs: counter("repairs_total", "Repairs of all workspaces."),
		repaired: counter(
			"repaired_total", "Objects that a repair applied again because another program had changed or deleted them.",
		),
		duration: histogram("apply_duration_seconds", "Duration of applying a revision."),
		latency: histogram(
			"latency_seconds", "Time from the arrival of a desired state to its application at the first attempt.",
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
		m.applied, m.terminated, m.failed, m.dropped, m.repairs, m.repaired, m.duration, m.latency, m.leading,
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
		if current := m.current.Load(); current != nil {
			return float64(current.publisher.Waiting())
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

func (m *metrics) depth(state string) float64 {
	current := m.current.Load()
	if current == nil {
		return 0
	}
	depth := current.queue.Depth()
	switch state {
	case "fresh":
		return float64(depth.Fresh)
	case "later":
		return float64(depth.Later)
	case "repair":
		return float64(depth.Repair)
	default:
		return float64(depth.Running)
	}
}

func (m *metrics) setLeading(current *leaderSession) {
	m.mu.Lock()
	m.terminations = map[string]bool{}
	m.mu.Unlock()
	m.current.Store(current)
	m.leading.Set(0)
	if current != nil {
		m.leading.Set(1)
	}
}

func (m *metrics) terminationStarted(workspace string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.terminations[workspace] = true
}

func (m *metrics) terminationEnded(workspace string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.terminations, workspace)
}
