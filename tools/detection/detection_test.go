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
	"lockstep.internal/tools/detection/watchertest"
)

const cell = topology.Cell("local")

// recorded returns the messages of a full resync, of two rollouts of which the second supersedes the first, of an
// environment, and of a second full resync, without one of the Deployments.
func recorded(t testing.TB) []*nats.Msg {
	t.Helper()
	var messages []*nats.Msg
	w := &watchertest.Watcher{
		Cell:    cell,
		Now:     time.Date(2026, 3, 4, 5, 6, 0, 0, time.UTC),
		Publish: func(m *nats.Msg) error { messages = append(messages, m); return nil },
	}
	group := map[string]string{environment.AnnotationSize: "1", "lockstep.dev/deploy-group": "pr-1"}
	web, gone := w.Deployment("web", group), w.Deployment("gone", nil)
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
	return messages
}

// detect passes the messages to a new detector one by one.
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
	_, facts := detect(t, recorded(t))
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
		"gone gap",
		"gone removed",
	}, names(facts))
	_, again := detect(t, recorded(t))
	require.Equal(t, facts, again)
}

func TestIncompleteResyncRemovesNothing(t *testing.T) {
	t.Parallel()
	messages := recorded(t)
	member := len(messages) - 3 // of the last resync
	_, facts := detect(t, append(append([]*nats.Msg{}, messages[:member]...), messages[member+1:]...))
	require.NotContains(t, names(facts), "gone removed")
}

func TestIrrelevantMessagesAreIgnored(t *testing.T) {
	t.Parallel()
	d := detection.New(cell, environment.Rules{})
	for _, subject := range []string{
		"lockstep.local.observed.1.deployment.ns.name", "lockstep.other.observed.1.tick",
		"lockstep.local.workspace.1.w.created", "x",
	} {
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
	_, facts := detect(t, recorded(t))
	n := len(facts)
	type counts map[detection.Verdict]int
	requireVerdicts := func(want counts, detected, published []events.DeployFact, partial bool) {
		t.Helper()
		got := counts{}
		for _, c := range detection.Compare(detected, published, partial) {
			got[c.Verdict]++
		}
		require.Equal(t, want, got)
	}
	requireVerdicts(counts{detection.Same: n}, facts, facts, false)
	requireVerdicts(counts{detection.Same: n - 1, detection.Missing: 1}, facts, facts[1:], false)
	requireVerdicts(counts{detection.Same: n - 1, detection.Extra: 1}, facts[:n-1], facts, false)

	other := append([]events.DeployFact{}, facts...)
	other[0].Reason = "Another"
	compared := detection.Compare(facts, other, false)
	require.Equal(t, detection.Changed, compared[0].Verdict)
	require.Equal(t, []string{"reason"}, compared[0].Fields)

	// A detection that starts later numbers the facts differently; the id of the last fact contains its number.
	renumbered := append([]events.DeployFact{}, facts...)
	for i := range renumbered {
		renumbered[i].Sequence += 10
	}
	requireVerdicts(counts{detection.Same: n}, facts, renumbered, true)
	requireVerdicts(counts{detection.Missing: 1, detection.Extra: 1}, facts[n-1:], renumbered[n-1:], false)
}

func TestCovers(t *testing.T) {
	t.Parallel()
	d, facts := detect(t, recorded(t))
	for i := range facts {
		require.True(t, d.Covers(&facts[i]))
	}
	later, elsewhere := facts[0], facts[0]
	later.ObservedAt = later.ObservedAt.Add(time.Hour)
	elsewhere.Workload.ClusterUID = "other"
	require.False(t, d.Covers(&later))
	require.False(t, d.Covers(&elsewhere))
}
