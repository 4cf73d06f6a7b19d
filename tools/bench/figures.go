package main

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

//go:embed figures.md
var figuresTable string

// spec is a row of figures.md.
type spec struct {
	name, unit, baseline, aim, about string
	// observed is the mean of the ratio in short runs.
	observed float64
	// margin is the factor by which the ratio of a short run may be worse; 0 keeps the figure out
	// of short runs.
	margin float64
}

// specsOf returns the rows of a benchmark.
func specsOf(benchmark string) []spec {
	var specs []spec
	for line := range strings.Lines(figuresTable) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 7 || !strings.HasPrefix(cells[0], benchmark+".") {
			continue
		}
		s := spec{name: cells[0], unit: cells[1], baseline: cells[2], aim: cells[3], about: cells[6]}
		// An empty cell is 0. A test checks the others.
		s.observed, _ = strconv.ParseFloat(cells[4], 64)
		s.margin, _ = strconv.ParseFloat(cells[5], 64)
		specs = append(specs, s)
	}
	return specs
}

// moreIsBetter reports whether the figure is a rate.
func (s spec) moreIsBetter() bool { return strings.HasSuffix(s.unit, "/s") }

// meets reports whether the aim holds, such as "ratio >= 0.5", "value < 25", "excess <= 10" or
// "copies >= 0.7": the excess is value - baseline, and a peer's name is value / the peer's value.
// It is nil without an aim, and without the value that the aim is about.
func (s spec) meets(value float64, baseline *float64, peers map[string]float64) (*bool, error) {
	var subject, operator string
	var bound float64
	if s.aim == "" {
		return nil, nil //nolint:nilnil // no aim
	}
	if _, err := fmt.Sscanf(s.aim, "%s %s %g", &subject, &operator, &bound); err != nil {
		return nil, fmt.Errorf("figures.md: aim of %s: %w", s.name, err)
	}
	peer, isPeer := peers[subject]
	switch {
	case isPeer:
		value /= peer
	case subject == peerName || subject == copiesName || subject != "value" && baseline == nil:
		return nil, nil //nolint:nilnil // not measured
	case subject == "ratio":
		value /= *baseline
	case subject == "excess":
		value -= *baseline
	}
	met := map[string]bool{">=": value >= bound, "<=": value <= bound, "<": value < bound}[operator]
	return &met, nil
}

// Figure is one measured value beside its baseline.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Baseline and Ratio, which is value / baseline, are null without a baseline.
	Baseline *float64 `json:"baseline"`
	Ratio    *float64 `json:"ratio"`
	// Peers are the values of other implementations in the same run, by their names.
	Peers map[string]float64 `json:"peers,omitempty"`
	Aim   string             `json:"aim,omitempty"`
	Met   *bool              `json:"met,omitempty"`
	Note  string             `json:"note,omitempty"`
}

// figuresOf returns the wanted figures in the order of the table.
func figuresOf(benchmark string, measured Measured, size Size) (figures []Figure, err error) {
	left := maps.Clone(measured)
	for _, s := range specsOf(benchmark) {
		name := strings.TrimPrefix(s.name, benchmark+".")
		f, there := measured[name]
		delete(left, name)
		if !there || !size.wants(name) {
			continue
		}
		f.Name, f.Unit, f.Aim = s.name, s.unit, s.aim
		if f.Met, err = s.meets(f.Value, f.Baseline, f.Peers); err != nil {
			return nil, err
		}
		if f.Baseline != nil && *f.Baseline != 0 {
			f.Baseline, f.Ratio = new(rounded(*f.Baseline)), new(rounded(f.Value / *f.Baseline))
		}
		f.Value = rounded(f.Value)
		for peer, value := range f.Peers {
			f.Peers[peer] = rounded(value)
		}
		figures = append(figures, f)
	}
	for name := range left {
		return nil, fmt.Errorf("figures.md has no row %s.%s", benchmark, name)
	}
	return figures, nil
}

// rounded rounds to four significant digits.
func rounded(value float64) float64 {
	short, err := strconv.ParseFloat(strconv.FormatFloat(value, 'g', 4, 64), 64)
	if err != nil {
		return value
	}
	return short
}

func writeLines(out io.Writer, figures []Figure) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for _, f := range figures {
		if err := encoder.Encode(f); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}

// writeTable prints the figures for people.
func writeTable(out io.Writer, figures []Figure) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "figure\tvalue\tunit\tbaseline\tratio\tpeers\taim\tmet\tnote")
	for _, f := range figures {
		met, peers := "", []string{}
		if f.Met != nil {
			met = map[bool]string{true: "yes", false: "NO"}[*f.Met]
		}
		for _, name := range slices.Sorted(maps.Keys(f.Peers)) {
			peers = append(peers, name+" "+short(new(f.Peers[name])))
		}
		cells := []string{
			f.Name, short(&f.Value), f.Unit, short(f.Baseline), short(f.Ratio), strings.Join(peers, ", "), f.Aim, met, f.Note,
		}
		for i := range cells[:8] {
			cells[i] = cmp.Or(cells[i], "-")
		}
		_, _ = fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// short writes three significant digits without an exponent.
func short(value *float64) string {
	if value == nil {
		return ""
	}
	decimals := 3
	for v := math.Abs(*value); v >= 1 && decimals > 0; v /= 10 {
		decimals--
	}
	return strconv.FormatFloat(*value, 'f', decimals, 64)
}
