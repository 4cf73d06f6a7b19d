package history_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/history"
	"lockstep.internal/schemas/gen/events"
)

func TestRollouts(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Date(2026, 3, 2, 10, 0, second, 0, time.UTC) }
	of := func(id string, revision int) func(*events.DeployFact) {
		return func(f *events.DeployFact) { f.Rollout.ID, f.Rollout.Revision = id, revision }
	}
	one, two := of("c/u/1", 1), of("c/u/2", 2)
	hole := events.Gap{Revisions: []int{1}, Since: at(10), Until: at(20)}
	gap := func(f *events.DeployFact) { f.Rollout, f.Gap = nil, &hole }
	unknown := func(f *events.DeployFact) { f.Gap = &hole }
	done, undone := history.TrueRollout{ID: "c/u/1", Revision: 1, Began: at(12), Done: true}, history.TrueRollout{ID: "c/u/1", Revision: 1, Began: at(12)}
	second := history.TrueRollout{ID: "c/u/2", Revision: 2, Began: at(30), Done: true}
	life := func(rollouts ...history.TrueRollout) history.TrueWorkload {
		return history.TrueWorkload{UID: "u", Name: "web", Rollouts: rollouts}
	}
	deleted := func(w history.TrueWorkload, second int) history.TrueWorkload {
		w.Deleted = at(second)
		return w
	}
	started, completed := fact(t, 1, events.FactStarted, "1", one), fact(t, 2, events.FactCompleted, "1", one)
	down := []history.Outage{{From: at(11), Until: at(19)}}
	for name, tc := range map[string]struct {
		records []history.Record
		truth   history.TrueWorkload
		outages []history.Outage
		finds   string
	}{
		"completed": {[]history.Record{started, completed}, life(done), nil, ""},
		"superseded": {[]history.Record{
			started, fact(t, 2, events.FactSuperseded, "1", one), fact(t, 3, events.FactStarted, "2", two), fact(t, 4, events.FactCompleted, "2", two),
		}, life(undone, second), nil, ""},
		"deleted in flight":        {[]history.Record{started, fact(t, 2, events.FactCancelled, "1", one)}, deleted(life(undone), 40), nil, ""},
		"missing":                  {nil, life(done), nil, "is missing"},
		"no end":                   {[]history.Record{started}, life(done), nil, "has no end"},
		"no start":                 {[]history.Record{completed}, life(done), nil, "has the facts"},
		"two ends":                 {[]history.Record{started, completed, fact(t, 3, events.FactSuperseded, "1", one)}, life(done), nil, "has the facts"},
		"invented":                 {[]history.Record{started, completed}, life(), nil, "is invented"},
		"completed too early":      {[]history.Record{started, completed}, life(undone), nil, "is told to be completed"},
		"completed, and not said":  {[]history.Record{started, fact(t, 2, events.FactSuperseded, "1", one)}, life(done, second), nil, "is told to be superseded"},
		"cancelled by nobody":      {[]history.Record{started, fact(t, 2, events.FactCancelled, "1", one)}, life(undone), nil, "is told to be cancelled"},
		"the next before the last": {[]history.Record{fact(t, 1, events.FactStarted, "2", two), fact(t, 2, events.FactCompleted, "2", two), fact(t, 3, events.FactStarted, "1", one), fact(t, 4, events.FactCompleted, "1", one)}, life(done, second), nil, "starts before"},
		"lost in an outage":        {[]history.Record{fact(t, 1, events.FactGap, "1", gap)}, life(done), down, ""},
		"lost without an outage":   {[]history.Record{fact(t, 1, events.FactGap, "1", gap)}, life(done), nil, "is missing"},
		"lost in another outage":   {[]history.Record{fact(t, 1, events.FactGap, "1", gap)}, life(done), []history.Outage{{From: at(21), Until: at(30)}}, "is missing"},
		"unknown in an outage":     {[]history.Record{started, fact(t, 2, events.FactUnknown, "1", one, unknown)}, life(done), down, ""},
		"unknown for no reason":    {[]history.Record{started, fact(t, 2, events.FactUnknown, "1", one, unknown)}, life(done), nil, "is told to be unknown"},
		"came and went unseen":     {nil, deleted(life(undone), 15), down, ""},
		"went when somebody saw":   {nil, deleted(life(undone), 25), down, "is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := history.Rollouts(tc.records, []history.TrueWorkload{tc.truth}, tc.outages)
			if tc.finds == "" {
				require.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			require.Contains(t, found[0], tc.finds)
		})
	}
}
