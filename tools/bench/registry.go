package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Family is figures that are measured together.
type Family struct {
	// Name begins the names of its figures.
	Name string
	// About says what is measured, against what, and with which parts standing in for others.
	About string
	// Specs of its figures.
	Specs []Spec
	// Run measures all of them. It cleans up also when ctx is done.
	Run func(ctx context.Context, size Size) (Measured, error)
}

// Size is how much is measured.
type Size struct {
	// For is how long the turns of one comparison may take together; at least three are taken. Defaults to 10 s.
	For time.Duration
	// Scale multiplies how many messages, workspaces and the like one turn has. Defaults to 1.
	Scale float64
	// Long measures also what takes more than a minute.
	Long bool
	// Profile is a file for the CPU profile of this process, and the beginning of those of its children; empty for none.
	Profile string
	// Figures that are wanted, without the family; nil is all. A family may measure others too.
	Figures []string
}

// wants tells whether any of these figures is.
func (s Size) wants(names ...string) bool {
	return s.Figures == nil || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(s.Figures, name) })
}

// of is a number of things, scaled.
func (s Size) of(n int) int { return max(int(float64(n)*s.Scale), 1) }

// Spec describes a figure before it is measured.
type Spec struct {
	// Name after the family's: rows_per_s.
	Name, Unit, About string
	// Baseline says what it is compared with; empty when there is nothing that it could honestly be compared with.
	Baseline string
	// Aim is what it shall be; the zero Aim is none.
	Aim Aim
}

// Measured is values by the names of Spec.
type Measured map[string]Measurement

// Measurement is a value beside its baseline.
type Measurement struct {
	Value float64
	// Baseline is nil when there is none.
	Baseline *float64
	// Peers is what others measured, by their names.
	Peers map[string]float64
	// Note says what a reader has to know about this one run.
	Note string
}

func beside(value, baseline float64) Measurement {
	return Measurement{Value: value, Baseline: &baseline}
}

// families in the order in which they run.
func families() []Family {
	return []Family{ingestFamily(), dispatchFamily(), resyncFamily(), watchFamily(), outboxFamily(), deploysFamily(), replayFamily(), relayFamily(), relay2Family()}
}

// figures puts what was measured into the order and words of the specs, as far as it is wanted.
func (f Family) figures(measured Measured, size Size) ([]Figure, error) {
	figures := make([]Figure, 0, len(measured))
	known := make(map[string]bool, len(f.Specs))
	for _, spec := range f.Specs {
		known[spec.Name] = true
		m, there := measured[spec.Name]
		if !there || !size.wants(spec.Name) {
			continue
		}
		figures = append(figures, newFigure(f.Name, spec, m))
	}
	for _, name := range slices.Sorted(maps.Keys(measured)) {
		if !known[name] {
			return nil, fmt.Errorf("benchmark %s measured %s, which it does not name", f.Name, name)
		}
	}
	return figures, nil
}

// names of the family's figures, with the family.
func (f Family) names() []string {
	names := make([]string, len(f.Specs))
	for i, spec := range f.Specs {
		names[i] = f.Name + "." + spec.Name
	}
	return names
}

// matching are the family's own names of the figures that a name means: one, or all parts of one, such as resync.peak_mb.
func (f Family) matching(name string) []string {
	var figures []string
	for i, full := range f.names() {
		if full == name || strings.HasPrefix(full, name+".") {
			figures = append(figures, f.Specs[i].Name)
		}
	}
	return figures
}

// list prints every name that run takes.
func list(out io.Writer, all []Family) error {
	for _, f := range all {
		if _, err := fmt.Fprintln(out, strings.Join(append([]string{f.Name}, f.names()...), "\n")); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}

const usage = `bench measures Lockstep beside the bare technology it stands on, in the same run and taking turns.

  go run ./tools/bench list                     print the names
  go run ./tools/bench run [flags] [NAME…]      run families (ingest) or single figures (ingest.rows_per_s), all without a name

Each figure is a JSON line {"name","value","unit","baseline","ratio","peers","aim","met","note"}: baseline and ratio (value / baseline) are null where there is
nothing to compare with; peers, what others measured that do the same, and aim and met are absent where there are none. Values are medians. A family takes about a minute on two idle cores.

Flags
  --for D       how long the turns of one comparison may take together, at least three being taken (default %s)
  --scale N     multiplies how many messages or workspaces a turn has (default 1)
  --long        measure also what takes more than a minute
  --table       print a table at the end instead of lines
  --cpuprofile FILE   write the CPU profile of this process, and of its children with their names appended, for go tool pprof

`

// manual prints what there is and what it means.
func manual(out io.Writer, all []Family) error {
	if _, err := fmt.Fprintf(out, usage, defaultFor); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range all {
		_, _ = fmt.Fprintf(table, "%s\t%s\n", f.Name, f.About)
		for _, spec := range f.Specs {
			against := "no baseline"
			if spec.Baseline != "" {
				against = "beside " + spec.Baseline
			}
			if aim := spec.Aim.String(); aim != "" {
				against += "; aim: " + aim
			}
			_, _ = fmt.Fprintf(table, "  .%s\t%s (%s), %s\n", spec.Name, spec.About, spec.Unit, against)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
