package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A short run measures each comparison for this long, with this share of the messages or workspaces, and ends with an
// error after the limit.
const (
	shortFor   = 2 * time.Second
	shortScale = 0.2
	shortLimit = 3 * time.Minute
)

// Benchmark measures figures together.
type Benchmark struct {
	// Name is the first part of the names of its figures in figures.md.
	Name string
	// measure adds the figures that size wants to measured, and possibly others.
	measure func(ctx context.Context, f *fixture, size Size, measured Measured)
}

// Run measures on a fixture, and cleans up when ctx is done, too.
func (b Benchmark) Run(ctx context.Context, size Size) (Measured, error) {
	measured := Measured{}
	err := onFixture(ctx, size.Programs, func(f *fixture) { b.measure(ctx, f, size, measured) })
	return measured, err
}

// Size is how much is measured.
type Size struct {
	// For is the duration of one comparison, which takes at least three turns. Defaults to 10 s.
	For time.Duration
	// Scale multiplies the number of messages or workspaces of a turn. Defaults to 1.
	Scale float64
	// Pods is how many pods a list of the Kubernetes API has. Defaults to 500.
	Pods int
	// Long measures the figures that take more than a minute, too.
	Long bool
	// Programs is the folder of Lockstep's programs.
	Programs string
	// Figures are the wanted ones without the name of the benchmark; nil for all.
	Figures []string
}

// wants reports whether any of these figures is wanted.
func (s Size) wants(names ...string) bool {
	isWanted := func(name string) bool { return slices.Contains(s.Figures, name) }
	return s.Figures == nil || slices.ContainsFunc(names, isWanted)
}

// of returns a scaled number of things, at least one.
func (s Size) of(n int) int { return max(int(float64(n)*s.Scale), 1) }

// Measured are figures by their names without that of the benchmark. A benchmark sets Value, Baseline, Peers and Note.
type Measured map[string]Figure

func beside(value, baseline float64) Figure { return Figure{Value: value, Baseline: &baseline} }

// benchmarks returns all of them in the order in which they run.
func benchmarks() []Benchmark {
	return []Benchmark{
		{"ingest", ingest},
		{"dispatch", dispatch},
		{"resync", resync},
		{"watch", watchHeap},
		{"outbox", outboxRows},
		{"deploys", deployFacts},
		{"replay", replayEvents},
		{"relay", relayRoutes},
		{"runners", runnerJobs},
		{"router", routerRequests},
		{"gateway", gatewayWays},
		{"admission", admissionJobs},
	}
}

// selection is a benchmark to run, and the rows of the figures to print.
type selection struct {
	benchmark Benchmark
	specs     []spec
}

// figures returns the names of the figures without the name of the benchmark.
func (s selection) figures() []string {
	var names []string
	for _, spec := range s.specs {
		names = append(names, strings.TrimPrefix(spec.name, s.benchmark.Name+"."))
	}
	return names
}

// choose finds benchmarks and figures by their names, in the order of all. The name resync.peak_mb
// means all figures whose names begin with it and a dot. A short run has only figures with a
// margin.
func choose(all []Benchmark, names []string, short bool) ([]selection, error) {
	var out []selection
	found := map[string]bool{}
	for _, b := range all {
		var specs []spec
		for _, spec := range specsOf(b.Name) {
			wanted := len(names) == 0
			for _, name := range names {
				if spec.name == name || strings.HasPrefix(spec.name, name+".") {
					wanted, found[name] = true, true
				}
			}
			if wanted && (!short || spec.margin > 0) {
				specs = append(specs, spec)
			}
		}
		if len(specs) > 0 {
			out = append(out, selection{b, specs})
		}
	}
	for _, name := range names {
		if !found[name] {
			return nil, fmt.Errorf("no figure is named %s; bench list prints the names", name)
		}
	}
	return out, nil
}
