package history_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
	"lockstep.internal/tools/history"
)

// fact is one of the rollout of a revision; change makes it another.
func fact(
	t *testing.T, number int, name events.Fact, revision string, change ...func(*events.DeployFact),
) history.Record {
	t.Helper()
	at := time.Date(2026, 3, 2, 10, 0, number, 0, time.UTC)
	f := events.DeployFact{
		Fact: name, Sequence: number, OccurredAt: at, ObservedAt: at, Provenance: events.ProvenanceObserved,
		Workload: events.Workload{ClusterUID: "c", Namespace: "shop", Kind: "deployment", Name: "checkout", UID: "u"},
		Rollout:  &events.Rollout{ID: "c/u/" + revision, Revision: 1, Change: events.ChangeUpdated},
	}
	for _, c := range change {
		c(&f)
	}
	e, err := cdevent.Of(string(cell), f)
	require.NoError(t, err)
	m, err := event.Encode(e, cell.Deploy("c", "shop", "deployment", "checkout", string(name)))
	require.NoError(t, err)
	return history.Record{Subject: m.Subject, Sequence: uint64(number), Header: m.Header, Data: m.Data}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	started, completed := fact(t, 1, events.FactStarted, "1"), fact(t, 2, events.FactCompleted, "1")
	for name, tc := range map[string]struct {
		records []history.Record
		finds   string
	}{
		"sound": {[]history.Record{
			started, completed, fact(t, 3, events.FactDrained, "1"),
			fact(t, 4, events.FactStarted, "2"), fact(t, 5, events.FactSuperseded, "2"),
		}, ""},
		"no event": {[]history.Record{{Subject: started.Subject}}, "is no event"},
		"another subject": {
			[]history.Record{{Subject: completed.Subject, Header: started.Header, Data: started.Data}},
			"fact belongs to subject",
		},
		"one is missing": {
			[]history.Record{started, fact(t, 3, events.FactCompleted, "1")},
			"has sequence 3 after 1",
		},
		"published twice": {[]history.Record{started, started}, "has sequence 1 after 1"},
		"starts twice":    {[]history.Record{started, fact(t, 2, events.FactStarted, "1")}, "starts twice"},
		"ends twice": {
			[]history.Record{started, completed, fact(t, 3, events.FactSuperseded, "1")},
			"is completed already",
		},
		"never started": {[]history.Record{fact(t, 1, events.FactCompleted, "1")}, "has not started"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := history.Facts(cell, tc.records)
			if tc.finds == "" {
				require.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			require.Contains(t, found[0], tc.finds)
			require.Contains(t, found[0], topology.StreamDeploys)
		})
	}
}
