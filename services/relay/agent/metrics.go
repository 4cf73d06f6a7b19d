package agent

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the agent.
type metrics struct {
	connects *prometheus.CounterVec
	streams  *prometheus.CounterVec
	bytes    *prometheus.CounterVec
}

func newMetrics(a *agent, registerer prometheus.Registerer) (*metrics, error) {
	options := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "lockstep", Subsystem: "relay_agent", Name: name, Help: help}
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(options(name, help)), []string{label})
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts(options(name, help)), value)
	}
	m := &metrics{
		connects: counters("connections_total", "Connections with relays, and attempts to connect, by outcome.", "outcome"),
		streams:  counters("streams_total", "Streams that relays opened, by outcome.", "outcome"),
		bytes: counters("target_bytes_total", "Bytes of ended streams to targets other than the Kubernetes API.",
			"direction"),
	}
	for _, collector := range []prometheus.Collector{
		m.connects, m.streams, m.bytes,
		gauge("connections", "Open connections with relays.", func() float64 { return float64(a.connected()) }),
		gauge("streams", "Open streams.", func() float64 { return float64(a.streams.count()) }),
		gauge("config_revision", "Revision of the agent's configuration; 0 before there is one.", func() float64 {
			return float64(a.targets.Summary().Revision)
		}),
		gauge("targets", "Targets of the agent's configuration, other than the Kubernetes API.", func() float64 {
			return float64(a.targets.Summary().Targets)
		}),
	} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}
