package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/tools/testkit/leaktest"
	"lockstep.internal/tools/testkit/programs"
)

func TestMain(m *testing.M) {
	if runAsStandIn() {
		return
	}
	leaktest.Main(m)
}

func TestTableOfFigures(t *testing.T) {
	t.Parallel()
	var listed bytes.Buffer
	require.NoError(t, command(&listed, io.Discard, []string{"list"}).Execute())
	rows := 0
	for _, b := range benchmarks() {
		for _, s := range specsOf(b.Name) {
			rows++
			require.NotEmpty(t, s.unit, s.name)
			require.NotEmpty(t, s.about, s.name)
			require.Contains(t, listed.String(), "| "+s.name+" |")
			_, err := s.meets(1, nil, nil)
			require.NoError(t, err)
			usesBaseline := strings.HasPrefix(s.aim, "ratio") || strings.HasPrefix(s.aim, "excess") || s.margin > 0
			require.False(t, usesBaseline && s.baseline == "", "%s needs a baseline", s.name)
			require.False(t, s.margin > 0 && (s.margin < 1 || s.observed <= 0), "%s: wrong margin", s.name)
		}
	}
	require.Equal(t, rows, strings.Count(figuresTable, "\n| ")-1,
		"a row belongs to no benchmark or does not have seven cells")
}

func TestChooseFigures(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]map[string]int{ // number of figures
		"outbox":                   {"outbox": 1},
		"ingest.rows_per_s":        {"ingest": 1},
		"resync.peak_mb":           {"resync": 2},
		"ingest.rows_per_s ingest": {"ingest": 4},
		"--short ingest resync":    {"ingest": 3, "resync": 1},
	} {
		names, isShort := strings.CutPrefix(names, "--short ")
		selected, err := choose(benchmarks(), strings.Fields(names), isShort)
		require.NoError(t, err)
		got := map[string]int{}
		for _, s := range selected {
			got[s.benchmark.Name] = len(s.figures())
		}
		require.Equal(t, want, got, names)
	}
	all, err := choose(benchmarks(), nil, false)
	require.NoError(t, err)
	require.Len(t, all, len(benchmarks()))
	for args, want := range map[string]string{
		"measure": "unknown command", "run ingest.x": "no figure is named ingest.x", "run in": "no figure is named in",
		"run --fro=3s": "unknown flag", "run --for=0s": "must be positive", "run --scale=-1": "must be positive",
	} {
		err := command(io.Discard, io.Discard, strings.Fields(args)).Execute()
		require.ErrorContains(t, err, want, args)
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	require.InDelta(t, 3, median([]float64{5, 1, 3}), 0)
	require.InDelta(t, 1, median([]float64{2, 1}), 0)
	require.InDelta(t, 0, median(nil), 0)
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	require.InDelta(t, 99, percentile(hundred, 99), 0)
	require.InDelta(t, 100, percentile(hundred, 100), 0)
	require.InDelta(t, 1, percentile(hundred, 0), 0)
	require.InDelta(t, 100, hundred[0], 0, "the values keep their order")
}

func TestTurnsAlternate(t *testing.T) {
	t.Parallel()
	var order []string
	take := func(name string) func(int) float64 {
		return func(round int) float64 {
			order = append(order, name)
			return float64(round)
		}
	}
	m := takeTurns(t.Context(), time.Nanosecond, take("o"), take("b"))
	require.Equal(t, []string{"o", "b", "b", "o", "o", "b"}, order)
	require.InDelta(t, 1, m.Value, 0)
	require.InDelta(t, 1, *m.Baseline, 0)

	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupt")
	err := onFixture(ctx, "", func(*fixture) { rotate(ctx, time.Hour, func(int) { cancel(cause) }) })
	require.ErrorIs(t, err, cause)
}

func TestFigures(t *testing.T) {
	t.Parallel()
	measured := Measured{
		"peak_mb.state": {Value: 3, Peers: map[string]float64{"v": 2.00004, "u": 1}}, "50k_s": {Value: 25, Note: "n"},
		"growth": beside(6.99999, 10),
	}
	figures, err := figuresOf("resync", measured, Size{})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, writeLines(&out, figures))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 3)
	require.JSONEq(t, `{"name":"resync.50k_s","value":25,"unit":"s","baseline":null,"ratio":null,
		"aim":"value <= 15","met":false,"note":"n"}`, lines[0])
	require.JSONEq(t, `{"name":"resync.peak_mb.state","value":3,"unit":"MB","baseline":null,"ratio":null,
		"peers":{"u":1,"v":2},"aim":"value <= 200","met":true}`, lines[1])
	require.JSONEq(t, `{"name":"resync.growth","value":7,"unit":"ms","baseline":10,"ratio":0.7,
		"aim":"ratio <= 1.2","met":true}`, lines[2])

	out.Reset()
	require.NoError(t, writeTable(&out, figures))
	require.Regexp(t, `resync\.growth +7\.00 +ms +10\.0 +0\.700 +- +ratio <= 1\.2 +yes`, out.String())
	require.Regexp(t, `resync\.50k_s +25\.0 +s +- +- +- +value <= 15 +NO +n`, out.String())

	figures, err = figuresOf("resync", measured, Size{Figures: []string{"growth"}})
	require.NoError(t, err)
	require.Len(t, figures, 1)
	_, err = figuresOf("resync", Measured{"w": {}}, Size{})
	require.ErrorContains(t, err, "no row resync.w")
}

func TestGate(t *testing.T) {
	t.Parallel()
	rate := spec{name: "a.rate", unit: "1/s", observed: 0.8, margin: 2}
	latency := spec{name: "a.latency", unit: "ms", observed: 0.8, margin: 2}
	free := spec{name: "a.free", unit: "ms"}
	for _, test := range []struct {
		spec  spec
		ratio float64
		want  []string
	}{
		{rate, 0.4, nil},
		{rate, 8, nil},
		{rate, 0.39, []string{"a.rate: ratio 0.39 is below 0.4 (observed 0.8, margin 2)"}},
		{latency, 1.6, nil},
		{latency, 0.1, nil},
		{latency, 1.7, []string{"a.latency: ratio 1.7 is above 1.6 (observed 0.8, margin 2)"}},
		{free, 100, nil},
	} {
		require.Equal(t, test.want, gate([]spec{test.spec}, []Figure{{Name: test.spec.name, Ratio: &test.ratio}}))
	}
	require.Equal(t, []string{"a.rate: no ratio was measured", "a.latency: no ratio was measured"},
		gate([]spec{rate, latency, free}, []Figure{{Name: "a.latency"}, {Name: "a.free"}}))
}

func TestShortRunFailsOnlyWhenFigureIsBeyondItsMarginTwice(t *testing.T) {
	t.Parallel()
	for name, ratios := range map[string][]float64{"within": {0.2}, "beyond": {0.001, 0.002}, "once": {0.001, 0.2}} {
		var progress bytes.Buffer
		runs := 0
		measure := func(_ context.Context, _ *fixture, _ Size, measured Measured) {
			measured["rows_per_s"] = beside(ratios[runs], 1)
			runs++
		}
		err := run{isShort: true, out: io.Discard, progress: &progress}.
			measure(t.Context(), []selection{{Benchmark{"outbox", measure}, specsOf("outbox")}})
		require.Equal(t, len(ratios), runs, name)
		if name != "beyond" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, "outbox.rows_per_s: ratio 0.002 is below")
		require.Contains(t, progress.String(), "outbox.rows_per_s: ratio 0.001 is below")
	}
}

// smallRun returns the smallest size that still runs each benchmark. It omits figures that need a kubelab or a flag.
func smallRun(t *testing.T, benchmark string) Size {
	t.Helper()
	folder, err := programs.Services(t.Context())
	require.NoError(t, err)
	figures := map[string][]string{
		"dispatch": {"p50_ms", "p99_ms"},
		"resync":   {"1k_s", "10k_s", "growth", "live_p99_ms"},
		"deploys":  {"facts_per_s", "kb_per_workload"},
	}
	if runtime.GOOS == "linux" {
		figures["resync"] = append(figures["resync"], "peak_mb.watcher", "peak_mb.state")
	}
	return Size{For: time.Millisecond, Scale: 0.01, Pods: 5, Programs: folder, Figures: figures[benchmark]}
}

func TestEveryBenchmarkRuns(t *testing.T) {
	for _, b := range benchmarks() {
		t.Run(b.Name, func(t *testing.T) {
			size := smallRun(t, b.Name)
			ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Minute, errors.New("the benchmark does not end"))
			defer cancel()
			measured, err := b.Run(ctx, size)
			require.NoError(t, err)
			figures, err := figuresOf(b.Name, measured, size)
			require.NoError(t, err)
			want := len(size.Figures)
			if size.Figures == nil {
				want = len(specsOf(b.Name))
			}
			require.Len(t, figures, want)
			for _, figure := range figures {
				if strings.Contains(figure.Name, ".kb_per_") || figure.Name == "runners.idle_queries" {
					// The difference of two heaps, which may be 0 with few workloads or connections. A short time may have no
					// transactions.
					require.GreaterOrEqual(t, figure.Value, 0.0, figure.Name)
					continue
				}
				require.Positive(t, figure.Value, figure.Name)
			}
		})
	}
}

func TestInterruptedBenchmarksCleanUp(t *testing.T) {
	for _, b := range benchmarks() {
		t.Run(b.Name, func(t *testing.T) {
			size := smallRun(t, b.Name)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := b.Run(ctx, size)
			require.Error(t, err)
		})
	}
}
