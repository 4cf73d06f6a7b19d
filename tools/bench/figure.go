package main

import (
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

// Figure is one measured number beside its baseline.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Baseline is null when there is none, and so is Ratio, which is value / baseline.
	Baseline *float64 `json:"baseline"`
	Ratio    *float64 `json:"ratio"`
	// Peers is what others that do the same measured in the same run, by their names.
	Peers map[string]float64 `json:"peers,omitempty"`
	// Aim is a sentence such as "ratio >= 0.7"; Met whether it holds, null when nothing is aimed at.
	Aim  string `json:"aim,omitempty"`
	Met  *bool  `json:"met,omitempty"`
	Note string `json:"note,omitempty"`
}

// Aim is a bound of a figure's value or ratio.
type Aim struct {
	// Of is what is bounded: ofValue, ofRatio or ofExcess; empty is no aim.
	Of string
	// AtLeast, AtMost or Below, whichever is not zero.
	AtLeast, AtMost, Below float64
}

const (
	ofValue = "value"
	ofRatio = "ratio"
	// ofExcess is how much more than its baseline a value is.
	ofExcess = "value - baseline"
)

// String is empty when there is no aim.
func (a Aim) String() string {
	switch {
	case a.Of == "":
		return ""
	case a.Below != 0:
		return fmt.Sprintf("%s < %g", a.Of, a.Below)
	case a.AtMost != 0:
		return fmt.Sprintf("%s <= %g", a.Of, a.AtMost)
	default:
		return fmt.Sprintf("%s >= %g", a.Of, a.AtLeast)
	}
}

// holds is nil when nothing is aimed at, or what is bounded was not measured.
func (a Aim) holds(value float64, baseline *float64) *bool {
	switch {
	case a.Of == "" || a.Of != ofValue && baseline == nil:
		return nil
	case a.Of == ofRatio:
		value /= *baseline
	case a.Of == ofExcess:
		value -= *baseline
	}
	met := value >= a.AtLeast && (a.Below == 0 || value < a.Below) && (a.AtMost == 0 || value <= a.AtMost)
	return &met
}

func newFigure(family string, spec Spec, m Measurement) Figure {
	f := Figure{Name: family + "." + spec.Name, Value: rounded(m.Value), Unit: spec.Unit, Aim: spec.Aim.String(), Note: m.Note}
	if m.Baseline != nil && *m.Baseline != 0 {
		baseline, ratio := rounded(*m.Baseline), rounded(m.Value/(*m.Baseline))
		f.Baseline, f.Ratio = &baseline, &ratio
	}
	if len(m.Peers) > 0 {
		f.Peers = make(map[string]float64, len(m.Peers))
		for peer, value := range m.Peers {
			f.Peers[peer] = rounded(value)
		}
	}
	f.Met = spec.Aim.holds(f.Value, f.Baseline)
	return f
}

// rounded to four significant digits: more would be noise.
func rounded(value float64) float64 {
	if value == 0 || math.IsInf(value, 0) || math.IsNaN(value) {
		return value
	}
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

// writeTable writes the figures for people.
func writeTable(out io.Writer, figures []Figure) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "figure\tvalue\tunit\tbaseline\tratio\tpeers\taim\tmet\tnote")
	for _, f := range figures {
		met := "-"
		if f.Met != nil {
			met = map[bool]string{true: "yes", false: "NO"}[*f.Met]
		}
		aim := f.Aim
		if aim == "" {
			aim = "-"
		}
		peers := make([]string, 0, len(f.Peers))
		for _, name := range slices.Sorted(maps.Keys(f.Peers)) {
			value := f.Peers[name]
			peers = append(peers, name+" "+short(&value))
		}
		if len(peers) == 0 {
			peers = append(peers, "-")
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, short(&f.Value), f.Unit, short(f.Baseline), short(f.Ratio), strings.Join(peers, ", "), aim, met, f.Note)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func short(value *float64) string {
	if value == nil {
		return "-"
	}
	return strconv.FormatFloat(*value, 'f', max(0, 3-digits(*value)), 64)
}

// digits before the point.
func digits(value float64) int {
	if math.Abs(value) < 1 {
		return 0
	}
	return int(math.Log10(math.Abs(value))) + 1
}
