package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if serveAsChild() {
		return
	}
	goleak.VerifyTestMain(m)
}

func TestEveryNameIsListedAndDescribed(t *testing.T) {
	t.Parallel()
	var listed, manual bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"list"}, &listed, io.Discard))
	require.NoError(t, run(t.Context(), []string{"help"}, &manual, io.Discard))
	seen := map[string]bool{}
	for _, f := range families() {
		require.NotEmpty(t, f.About)
		for _, name := range append(f.names(), f.Name) {
			require.False(t, seen[name], name)
			seen[name] = true
			require.Contains(t, listed.String(), name+"\n")
		}
		for _, spec := range f.Specs {
			require.NotEmpty(t, spec.Unit, spec.Name)
			require.Contains(t, manual.String(), spec.About)
			require.False(t, (spec.Aim.Of == ofRatio || spec.Aim.Of == ofExcess) && spec.Baseline == "", "%s aims at what it has beside nothing", spec.Name)
		}
	}
}

func two() []Family {
	return []Family{{Name: "a", Specs: []Spec{{Name: "x"}, {Name: "y"}}}, {Name: "b", Specs: []Spec{{Name: "z"}}}, {Name: "p", Specs: []Spec{{Name: "x.one"}, {Name: "x.two"}}}}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want map[string][]string
	}{
		"nothing is all":                   {[]string{"run"}, map[string][]string{"a": nil, "b": nil, "p": nil}},
		"a family":                         {[]string{"run", "b"}, map[string][]string{"b": nil}},
		"a figure":                         {[]string{"run", "a.y"}, map[string][]string{"a": {"y"}}},
		"the parts of a figure":            {[]string{"run", "p.x"}, map[string][]string{"p": {"x.one", "x.two"}}},
		"figures of one family":            {[]string{"run", "a.y", "a.x"}, map[string][]string{"a": {"y", "x"}}},
		"a figure does not narrow":         {[]string{"run", "a", "a.x"}, map[string][]string{"a": nil}},
		"a family widens":                  {[]string{"run", "a.x", "a"}, map[string][]string{"a": nil}},
		"flags among the names":            {[]string{"run", "b", "--for", "3s", "a.x", "--scale=2"}, map[string][]string{"a": {"x"}, "b": nil}},
		"the order is that of the listing": {[]string{"run", "b", "a"}, map[string][]string{"a": nil, "b": nil}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, err := parseArguments(test.args, two())
			require.NoError(t, err)
			got := map[string][]string{}
			for i, w := range asked.wanted {
				got[w.family.Name] = w.figures
				require.False(t, i > 0 && asked.wanted[i-1].family.Name > w.family.Name)
			}
			require.Equal(t, test.want, got)
		})
	}
	asked, err := parseArguments([]string{"run", "--for", "3s", "--scale", "0.5", "--table"}, two())
	require.NoError(t, err)
	require.Equal(t, Size{For: 3 * time.Second, Scale: 0.5}, asked.Size)
	require.True(t, asked.table)
	require.Equal(t, 5, asked.of(10))
	require.Equal(t, 1, asked.of(1))
}

func TestWhatIsNotUnderstoodIsSaid(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "say `list`"},
		{[]string{"measure"}, "no command"},
		{[]string{"run", "c"}, `no benchmark "c": there are a, b`},
		{[]string{"run", "a.z"}, "it has a.x, a.y"},
		{[]string{"run", "--fro=3s"}, "fro"},
		{[]string{"run", "--for=0s"}, "more than 0"},
		{[]string{"run", "--scale=-1"}, "more than 0"},
	} {
		_, err := parseArguments(test.args, two())
		require.ErrorContains(t, err, test.want)
	}
	for _, args := range [][]string{{"help"}, {"--help"}, {"run", "--help"}} {
		_, err := parseArguments(args, two())
		require.ErrorIs(t, err, errHelp)
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
	require.InDelta(t, 100, hundred[0], 0, "the values are left as they were")
}

func TestTurnsAreTakenFairly(t *testing.T) {
	t.Parallel()
	var order []string
	take := func(name string) turn {
		return func(_ context.Context, round int) (float64, error) {
			order = append(order, name)
			return float64(round), nil
		}
	}
	ours, bare, err := takeTurns(t.Context(), time.Nanosecond, take("o"), take("b"))
	require.NoError(t, err)
	require.Equal(t, []string{"o", "b", "b", "o", "o", "b"}, order)
	require.Equal(t, []float64{0, 1, 2}, ours)
	require.Equal(t, ours, bare)

	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupt")
	_, _, err = takeTurns(ctx, time.Hour, func(context.Context, int) (float64, error) {
		cancel(cause)
		return 0, nil
	}, take("b"))
	require.ErrorIs(t, err, cause)
}

func TestFiguresSayWhatTheyAreBeside(t *testing.T) {
	t.Parallel()
	f := Family{Name: "a", Specs: []Spec{
		{Name: "x", Unit: "1/s", Baseline: "bare", Aim: Aim{Of: ofRatio, AtLeast: 0.7}},
		{Name: "y", Unit: "ms", Aim: Aim{Of: ofValue, Below: 25}},
		{Name: "z", Unit: "MB"},
	}}
	measured := Measured{"z": {Value: 3, Peers: map[string]float64{"v": 2.00004, "u": 1}}, "y": {Value: 25, Note: "n"}, "x": beside(6.99999, 10)}
	figures, err := f.figures(measured, Size{})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, writeLines(&out, figures))
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	require.Len(t, lines, 3)
	require.JSONEq(t, `{"name":"a.x","value":7,"unit":"1/s","baseline":10,"ratio":0.7,"aim":"ratio >= 0.7","met":true}`, string(lines[0]))
	require.JSONEq(t, `{"name":"a.y","value":25,"unit":"ms","baseline":null,"ratio":null,"aim":"value < 25","met":false,"note":"n"}`, string(lines[1]))
	require.JSONEq(t, `{"name":"a.z","value":3,"unit":"MB","baseline":null,"ratio":null,"peers":{"u":1,"v":2}}`, string(lines[2]))
	for _, line := range lines {
		require.True(t, json.Valid(line))
	}

	out.Reset()
	require.NoError(t, writeTable(&out, figures))
	require.Regexp(t, `a\.x +7\.00 +1/s +10\.0 +0\.700 +- +ratio >= 0\.7 +yes`, out.String())
	require.Regexp(t, `a\.y +25\.0 +ms +- +- +- +value < 25 +NO +n`, out.String())
	require.Regexp(t, `a\.z +3\.00 +MB +- +- +u 1\.00, v 2\.00 +- +-`, out.String())

	figures, err = f.figures(measured, Size{Figures: []string{"y"}})
	require.NoError(t, err)
	require.Len(t, figures, 1)
	_, err = f.figures(Measured{"w": {}}, Size{})
	require.ErrorContains(t, err, "measured w")
}

// little is as little of a family as shows that it works. What needs a kubelab, or a flag, is left out.
func little(family string) Size {
	return Size{For: time.Millisecond, Scale: 0.01, Figures: map[string][]string{
		"dispatch": {"p50_ms", "p99_ms"}, "resync": {"1k_s", "10k_s", "peak_mb.watcher", "peak_mb.state", "growth"},
		"deploys": {"facts_per_s", "kb_per_workload"}, "relay2": {"http_c8_rps", "http_c8_p99_ms", "bulk_up_8_mb_s", "wait_ms"},
	}[family]}
}

func TestEachFamilyRuns(t *testing.T) {
	for _, f := range families() {
		t.Run(f.Name, func(t *testing.T) {
			size := little(f.Name)
			measured, err := f.Run(t.Context(), size)
			require.NoError(t, err)
			figures, err := f.figures(measured, size)
			require.NoError(t, err)
			want := len(size.Figures)
			if size.Figures == nil {
				want = len(f.Specs)
			}
			require.Len(t, figures, want)
			for _, figure := range figures {
				require.Positive(t, figure.Value, figure.Name)
			}
		})
	}
}

func TestInterruptionsLeaveNothingBehind(t *testing.T) {
	for _, f := range families() {
		t.Run(f.Name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := f.Run(ctx, little(f.Name))
			require.Error(t, err)
		})
	}
}
