package service

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.internal/libs/logkey"
)

// Report is the readiness of a service as /readyz shows it.
type Report struct {
	Ready    bool          `json:"ready"`
	Draining bool          `json:"draining"`
	Checks   []CheckReport `json:"checks"`
}

// CheckReport is the readiness of one part.
type CheckReport struct {
	Name   string    `json:"name"`
	Ready  bool      `json:"ready"`
	Reason string    `json:"reason,omitempty"` // why it is not ready, or ready but degraded
	Since  time.Time `json:"since"`            // last change between ready and not ready
}

// Text returns the report as text, one line per part.
func (r Report) Text() string {
	var text strings.Builder
	switch {
	case r.Draining:
		text.WriteString("not ready: draining\n")
	case r.Ready:
		text.WriteString("ready\n")
	default:
		text.WriteString("not ready\n")
	}
	for _, c := range r.Checks {
		mark := "[ok] "
		switch {
		case !c.Ready:
			mark = "[no] "
		case c.Reason != "":
			mark = "[!!] "
		}
		text.WriteString(mark + c.Name)
		if c.Reason != "" {
			text.WriteString(": " + strings.ReplaceAll(c.Reason, "\n", " "))
		}
		text.WriteString(" (since " + c.Since.UTC().Format(time.RFC3339) + ")\n")
	}
	return text.String()
}

// status is the state of one part: readiness by its Run and by its Check.
type status struct {
	run, check             bool
	runReason, checkReason string // why each is not ready; checkReason also why it is degraded
	since                  time.Time
	first                  chan struct{} // closed when the part was ready once
}

func (s *status) ready() bool { return s.run && s.check }

func (s *status) text() string {
	if !s.run {
		return s.runReason
	}
	return s.checkReason
}

// health keeps the status of all parts, logs changes and sets the metric.
type health struct {
	logger       *slog.Logger
	ready        *prometheus.GaugeVec
	onFirstReady func() // called once, when all parts are ready for the first time

	mu       sync.Mutex
	names    []string
	parts    map[string]*status
	draining bool
	once     bool
}

func newHealth(logger *slog.Logger, metrics prometheus.Registerer, parts []Part, done func()) (*health, error) {
	h := &health{
		logger: logger, onFirstReady: done, parts: make(map[string]*status, len(parts)),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_part_ready", Help: "Whether a part of the service is ready.",
		}, []string{"part"}),
	}
	now := time.Now()
	for _, p := range parts {
		h.names = append(h.names, p.Name)
		h.parts[p.Name] = &status{
			run: p.Run == nil, runReason: "starting", check: p.Check == nil, checkReason: "not checked yet", since: now,
			first: make(chan struct{}),
		}
		if p.Check == nil {
			h.parts[p.Name].checkReason = ""
		}
		h.ready.WithLabelValues(p.Name).Set(0)
	}
	return h, metrics.Register(h.ready) //nolint:wrapcheck // wrapped by the caller
}

// first returns a channel that is closed when the part was ready once.
func (h *health) first(name string) <-chan struct{} { return h.parts[name].first }

func (h *health) setRun(name string, ready bool, reason string) {
	h.change(name, func(s *status) { s.run, s.runReason = ready, reason })
}

func (h *health) setCheck(name string, err error) {
	var d *degraded
	h.change(name, func(s *status) {
		s.check, s.checkReason = err == nil || errors.As(err, &d), ""
		if err != nil {
			s.checkReason = err.Error()
		}
	})
}

func (h *health) change(name string, apply func(*status)) {
	h.mu.Lock()
	s := h.parts[name]
	before := s.ready()
	apply(s)
	changed := before != s.ready()
	if changed {
		s.since = time.Now()
		h.log(name, s)
	}
	first := h.evaluate(s)
	h.mu.Unlock()
	if first {
		h.onFirstReady()
	}
}

// evaluate closes s.first of a ready part and reports whether the whole service is ready for the
// first time.
func (h *health) evaluate(s *status) bool {
	if s.ready() {
		select {
		case <-s.first:
		default:
			close(s.first)
		}
	}
	if h.once || h.draining {
		return false
	}
	for _, other := range h.parts {
		if !other.ready() {
			return false
		}
	}
	h.once = true
	return true
}

func (h *health) log(name string, s *status) {
	if s.ready() {
		h.ready.WithLabelValues(name).Set(1)
		h.logger.Info("part is ready", slog.String(logkey.Part, name))
		return
	}
	h.ready.WithLabelValues(name).Set(0)
	if !h.draining {
		h.logger.Warn("part is not ready", slog.String(logkey.Part, name), slog.String(logkey.Reason, s.text()))
	}
}

func (h *health) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
}

func (h *health) report() Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := Report{Ready: !h.draining, Draining: h.draining, Checks: make([]CheckReport, 0, len(h.names))}
	for _, name := range h.names {
		s := h.parts[name]
		r.Ready = r.Ready && s.ready()
		r.Checks = append(r.Checks, CheckReport{Name: name, Ready: s.ready(), Reason: s.text(), Since: s.since})
	}
	// Parts that are not ready come first.
	slices.SortStableFunc(r.Checks, func(a, b CheckReport) int { return rank(a) - rank(b) })
	return r
}

func rank(c CheckReport) int {
	if c.Ready {
		return 1
	}
	return 0
}

// watch runs the check of a part until ctx ends.
func (h *health) watch(ctx context.Context, p Part, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		checkCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := p.Check(checkCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		h.setCheck(p.Name, err)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
