package detection_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/environment"
	"lockstep.internal/tools/detection"
	"lockstep.internal/tools/detection/played"
)

const cell = topology.Cell("local")

// history plays a listing, two rollouts of which the second takes the place of the first, an
// environment, and a deletion that only a listing shows.
func history(t testing.TB) []*nats.Msg {
	t.Helper()
	var told []*nats.Msg
	w := &played.Watcher{
		Cell: cell,
		Now:  time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC),
		Say:  func(m *nats.Msg) error { told = append(told, m); return nil },
	}
	web, gone := w.Deployment(
		"web",
		map[string]string{environment.AnnotationSize: "1", "lockstep.dev/deploy-group": "pr-1"},
	), w.Deployment(
		"gone",
		nil,
	)
	for _, step := range []func() error{
		func() error { return w.List("r1", web, gone) },
		func() error { return web.Roll("2") },
		web.Step,
		func() error { return web.Roll("3") },
		web.Step, web.Finish, w.Tick,
		func() error { return w.List("r2", web) },
		w.Tick,
	} {
		require.NoError(t, step())
	}
	return told
}

func detect(t testing.TB, messages []*nats.Msg) (*detection.Detector, []events.DeployFact) {
	t.Helper()
	d := detection.New(cell, environment.Rules{})
	var facts []events.DeployFact
	for i, m := range messages {
		more, err := d.Take(uint64(i+1), m.Subject, m.Header, m.Data)
		require.NoError(t, err)
		facts = append(facts, more...)
	}
	return d, facts
}

func names(facts []events.DeployFact) []string {
	out := make([]string, len(facts))
	for i := range facts {
		out[i] = facts[i].Workload.Name + " " + string(facts[i].Fact)
	}
	return out
}

func TestFactsOfRecordedMessages(t *testing.T) {
	t.Parallel()
	_, facts := detect(t, history(t))
	require.Equal(t, []string{
		"web started",
		"pr-1 environment_started",
		"web progressed",
		"web superseded",
		"web started",
		"web progressed",
		"web completed",
		"web drained",
		"pr-1 environment_ready",
		"gone removed",
	}, names(facts))
	_, again := detect(t, history(t))
	require.Equal(t, facts, again)
}

func TestIncompleteResyncRemovesNothing(t *testing.T) {
	t.Parallel()
	told := history(t)
	// Without one of its members, the last listing is not whole.
	at := len(told) - 3
	_, facts := detect(t, append(append([]*nats.Msg{}, told[:at]...), told[at+1:]...))
	require.NotContains(t, names(facts), "gone removed")
}

func TestIrrelevantMessagesAreIgnored(t *testing.T) {
	t.Parallel()
	d := detection.New(cell, environment.Rules{})
	for _, subject := range []string{"lockstep.local.observed.1.deployment.ns.name", "lockstep.other.observed.1.tick", "lockstep.local.workspace.1.w.created", "x"} {
		require.False(t, d.Relevant(subject), subject)
		facts, err := d.Take(1, subject, nil, []byte("no event"))
		require.NoError(t, err)
		require.Empty(t, facts)
	}
	_, err := d.Take(1, cell.ObservedTick(1), nil, []byte("no event"))
	require.Error(t, err)
}

func TestCompare(t *testing.T) {
	t.Parallel()
	_, facts := detect(t, history(t))
	verdicts := func(said, published []events.DeployFact, partial bool) map[detection.Verdict]int {
		out := map[detection.Verdict]int{}
		for _, c := range detection.Compare(said, published, partial) {
			out[c.Verdict]++
		}
		return out
	}
	require.Equal(t, map[detection.Verdict]int{detection.Same: len(facts)}, verdicts(facts, facts, false))
	require.Equal(
		t,
		map[detection.Verdict]int{detection.Same: len(facts) - 1, detection.Missing: 1},
		verdicts(facts, facts[1:], false),
	)
	require.Equal(
		t,
		map[detection.Verdict]int{detection.Same: len(facts) - 1, detection.Extra: 1},
		verdicts(facts[:len(facts)-1], facts, false),
	)

	other := append([]events.DeployFact{}, facts...)
	other[0].Reason = "Another"
	compared := detection.Compare(facts, other, false)
	require.Equal(t, detection.Changed, compared[0].Verdict)
	require.Equal(t, []string{"reason"}, compared[0].Fields)

	// Counted differently, as from a later beginning on: the last fact has its sequence in its id.
	last := len(facts) - 1
	counted := append([]events.DeployFact{}, facts...)
	for i := range counted {
		counted[i].Sequence += 10
	}
	require.Equal(t, map[detection.Verdict]int{detection.Same: len(facts)}, verdicts(facts, counted, true))
	require.Equal(
		t,
		map[detection.Verdict]int{detection.Missing: 1, detection.Extra: 1},
		verdicts(facts[last:], counted[last:], false),
	)
}

func TestCovers(t *testing.T) {
	t.Parallel()
	d, facts := detect(t, history(t))
	for i := range facts {
		require.True(t, d.Covers(&facts[i]))
	}
	later, elsewhere := facts[0], facts[0]
	later.ObservedAt = later.ObservedAt.Add(time.Hour)
	elsewhere.Workload.ClusterUID = "other"
	require.False(t, d.Covers(&later))
	require.False(t, d.Covers(&elsewhere))
}
