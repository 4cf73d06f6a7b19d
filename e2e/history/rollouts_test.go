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
	took := func(f *events.DeployFact) { f.DurationMs = new(1000) }
	by := func(source events.TimeSource, second int) func(*events.DeployFact) {
		return func(f *events.DeployFact) { f.TimeSource, f.OccurredAt = source, at(second) }
	}
	creation, written := events.TimeSourceCreationTimestamp, events.TimeSourceManagedFields
	condition := events.TimeSourceCondition
	concluded := func(f *events.DeployFact) { f.Provenance = events.ProvenanceReconstructed }
	done, undone := history.TrueRollout{
		ID:       "c/u/1",
		Revision: 1,
		Began:    at(12),
		Done:     true,
	}, history.TrueRollout{
		ID:       "c/u/1",
		Revision: 1,
		Began:    at(12),
	}
	second := history.TrueRollout{ID: "c/u/2", Revision: 2, Began: at(30), Done: true}
	lifecycle := func(rollouts ...history.TrueRollout) history.TrueWorkload {
		return history.TrueWorkload{UID: "u", Name: "web", Rollouts: rollouts}
	}
	started, completed := fact(t, 1, events.FactStarted, "1", one), fact(t, 2, events.FactCompleted, "1", one, took)
	timed := lifecycle(
		history.TrueRollout{
			ID:       "c/u/1",
			Revision: 1,
			Began:    at(12),
			Born:     at(1),
			Done:     true,
			Ends:     []time.Time{at(2), at(3)},
		},
	)
	timed.Written = []time.Time{at(0)}
	starts := func(change ...func(*events.DeployFact)) []history.Record {
		return []history.Record{
			fact(t, 1, events.FactStarted, "1", append(change, one)...),
			fact(t, 2, events.FactCompleted, "1", one, took),
		}
	}
	ends := func(change ...func(*events.DeployFact)) []history.Record {
		return []history.Record{started, fact(t, 2, events.FactCompleted, "1", append(change, one)...)}
	}
	deleted := func(w history.TrueWorkload, second int) history.TrueWorkload {
		w.Deleted = at(second)
		return w
	}
	down := []history.Outage{{From: at(11), Until: at(19)}}
	for name, tc := range map[string]struct {
		records []history.Record
		truth   history.TrueWorkload
		outages []history.Outage
		finds   string
	}{
		"completed": {[]history.Record{started, completed}, lifecycle(done), nil, ""},
		"superseded": {[]history.Record{
			started, fact(t, 2, events.FactSuperseded, "1", one), fact(t, 3, events.FactStarted, "2", two), fact(t, 4,
				events.FactCompleted, "2", two, took),
		}, lifecycle(undone, second), nil, ""},
		"deleted in flight": {
			[]history.Record{started, fact(t, 2, events.FactCancelled, "1", one)},
			deleted(lifecycle(undone), 40), nil, "",
		},
		"missing":  {nil, lifecycle(done), nil, "is missing"},
		"no end":   {[]history.Record{started}, lifecycle(done), nil, "has no end"},
		"no start": {[]history.Record{completed}, lifecycle(done), nil, "has the facts"},
		"two ends": {
			[]history.Record{started, completed, fact(t, 3, events.FactSuperseded, "1", one)},
			lifecycle(done),
			nil, "has the facts",
		},
		"invented": {[]history.Record{started, completed}, lifecycle(), nil, "is invented"},
		"completed too early": {
			[]history.Record{started, completed},
			lifecycle(undone), nil,
			"is published to be completed",
		},
		"completed without a fact": {
			[]history.Record{started, fact(t, 2, events.FactSuperseded, "1", one)},
			lifecycle(done, second), nil, "is published to be superseded",
		},
		"cancelled by nobody": {
			[]history.Record{started, fact(t, 2, events.FactCancelled, "1", one)},
			lifecycle(undone), nil, "is published to be cancelled",
		},
		"the next before the last": {
			[]history.Record{
				fact(t, 1, events.FactStarted, "2", two),
				fact(t, 2, events.FactCompleted, "2", two, took), fact(t, 3, events.FactStarted, "1", one), fact(t, 4,
					events.FactCompleted, "1", one, took),
			},
			lifecycle(done, second), nil, "starts before",
		},
		"lost in an outage": {[]history.Record{fact(t, 1, events.FactGap, "1", gap)}, lifecycle(done), down, ""},
		"lost without an outage": {
			[]history.Record{fact(t, 1, events.FactGap, "1", gap)},
			lifecycle(done), nil,
			"is missing",
		},
		"lost in another outage": {
			[]history.Record{fact(t, 1, events.FactGap, "1", gap)},
			lifecycle(done),
			[]history.Outage{{From: at(21), Until: at(30)}},
			"is missing",
		},
		"unknown in an outage": {
			[]history.Record{started, fact(t, 2, events.FactUnknown, "1", one, unknown)},
			lifecycle(done), down, "",
		},
		"unknown for no reason": {
			[]history.Record{started, fact(t, 2, events.FactUnknown, "1", one, unknown)},
			lifecycle(done), nil, "is published to be unknown",
		},
		"begun when its object was made":      {starts(by(creation, 1)), timed, nil, ""},
		"begun when something else was made":  {starts(by(creation, 2)), timed, nil, "is published to be started at"},
		"begun when its template was written": {starts(by(written, 0)), timed, nil, ""},
		"begun when nobody wrote":             {starts(by(written, 1)), timed, nil, "is published to be started at"},
		"begun who knows when":                {starts(by(written, 1), concluded), timed, nil, ""},
		"ended at the time of its controller": {ends(by(condition, 3), took), timed, nil, ""},
		"ended at another time":               {ends(by(condition, 4), took), timed, nil, "is published to be completed at"},
		"took as long as in the cluster": {ends(by(condition, 3),
			func(f *events.DeployFact) { f.DurationMs = new(2000) }), timed, nil, ""},
		"took too long": {ends(by(condition, 3),
			func(f *events.DeployFact) { f.DurationMs = new(3000) }), timed, nil, "took 2000 ms"},
		"took nobody knows how long": {ends(), timed, nil, "took 1000 ms"},
		"came and went unseen":       {nil, deleted(lifecycle(undone), 15), down, ""},
		"went when somebody saw":     {nil, deleted(lifecycle(undone), 25), down, "is missing"},
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
