package main

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGate(t *testing.T) {
	t.Parallel()
	rate := spec{name: "a.rate", unit: "1/s", observed: 0.8, margin: 2}
	latency := spec{name: "a.latency", unit: "ms", observed: 0.8, margin: 2}
	free := spec{name: "a.free", unit: "ms"}
	for name, test := range map[string]struct {
		spec  spec
		ratio float64
		want  []string
	}{
		"a rate within":          {rate, 0.4, nil},
		"a better rate":          {rate, 8, nil},
		"a rate below":           {rate, 0.39, []string{"a.rate: ratio 0.39 is below 0.4 (observed 0.8, margin 2)"}},
		"a latency within":       {latency, 1.6, nil},
		"a better latency":       {latency, 0.1, nil},
		"a latency above":        {latency, 1.7, []string{"a.latency: ratio 1.7 is above 1.6 (observed 0.8, margin 2)"}},
		"a figure with no limit": {free, 100, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, gate([]spec{test.spec}, []Figure{{Name: test.spec.name, Ratio: &test.ratio}}))
		})
	}
	require.Equal(t, []string{"a.rate: no ratio was measured", "a.latency: no ratio was measured"},
		gate([]spec{rate, latency, free}, []Figure{{Name: "a.latency"}, {Name: "a.free"}}))
}

func TestShortRunFailsOnlyWhenFigureIsBeyondItsMarginTwice(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ratios []float64 // of the runs
		fails  bool
	}{
		"within":      {[]float64{0.2}, false},
		"beyond":      {[]float64{0.001, 0.002}, true},
		"beyond once": {[]float64{0.001, 0.2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			all := []Benchmark{{"outbox", func(_ context.Context, _ *fixture, _ Size, measured Measured) {
				measured["rows_per_s"] = beside(test.ratios[runs], 1)
				runs++
			}}}
			var progress bytes.Buffer
			err := command(all, io.Discard, &progress, []string{"run", "--short"}).Execute()
			require.Equal(t, len(test.ratios), runs)
			if !test.fails {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "outbox.rows_per_s: ratio 0.002 is below")
			require.Contains(t, progress.String(), "outbox.rows_per_s: ratio 0.001 is below")
		})
	}
}
