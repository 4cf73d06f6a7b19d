package main

import "fmt"

// gate returns a line for each figure with a margin that was not measured, or whose ratio is worse than the observed
// one by more than the margin.
func gate(specs []spec, figures []Figure) []string {
	ratios := map[string]*float64{}
	for _, f := range figures {
		ratios[f.Name] = f.Ratio
	}
	var lines []string
	for _, s := range specs {
		if s.margin == 0 {
			continue
		}
		ratio := ratios[s.name]
		least, most := s.observed/s.margin, s.observed*s.margin
		switch {
		case ratio == nil:
			lines = append(lines, s.name+": no ratio was measured")
		case s.moreIsBetter() && *ratio < least:
			lines = append(lines, fmt.Sprintf("%s: ratio %g is below %.2g (observed %g, margin %g)",
				s.name, *ratio, least, s.observed, s.margin))
		case !s.moreIsBetter() && *ratio > most:
			lines = append(lines, fmt.Sprintf("%s: ratio %g is above %.2g (observed %g, margin %g)",
				s.name, *ratio, most, s.observed, s.margin))
		}
	}
	return lines
}
