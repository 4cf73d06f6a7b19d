package history_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/history"
)

func TestRollouts(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Date(2026, 3, 2, 10, 0, second, 0, time.UTC) }
	of := func(id string, revision int) func(*events.DeployFact) {
		return func(f *events.DeployFact) { f.Rollout.ID, f.Rollout.Revision = id, revision }
	}
	one, two := of("c/u/1", 1), of("c/u/2", 2)
	interval := events.Gap{Revisions: []int{1}, Since: at(10), Until: at(20)}
	gap := func(f *events.DeployFact) { f.Rollout, f.Gap = nil, &interval }
	unknown := func(f *events.DeployFact) { f.Gap = &interval }
	took := func(f *events.DeployFact) { f.DurationMs = new(1000) }
	by := func(source events.TimeSource, second int) func(*events.DeployFact) {
		return func(f *events.DeployFact) { f.TimeSource, f.OccurredAt = source, at(second) }
	}
	creation, written := events.TimeSourceCreationTimestamp, events.TimeSourceManagedFields
	condition := events.TimeSourceCondition
	reconstructed := func(f *events.DeployFact) { f.Provenance = events.ProvenanceReconstructed }
	incomplete := history.ExpectedRollout{ID: "c/u/1", Revision: 1, StartedAt: at(12)}
	complete, traced := incomplete, incomplete
	traced.Traced = true
	complete.Completed = true
	second := history.ExpectedRollout{ID: "c/u/2", Revision: 2, StartedAt: at(30), Completed: true}
	lifecycle := func(rollouts ...history.ExpectedRollout) history.ExpectedWorkload {
		return history.ExpectedWorkload{UID: "u", Name: "web", Rollouts: rollouts}
	}
	started, completed := fact(t, 1, events.FactStarted, "1", one), fact(t, 2, events.FactCompleted, "1", one, took)
	timed := lifecycle(
		history.ExpectedRollout{
			ID:          "c/u/1",
			Revision:    1,
			StartedAt:   at(12),
			CreatedAt:   at(1),
			Completed:   true,
			CompletedAt: []time.Time{at(2), at(3)},
		},
	)
	timed.TemplateChangedAt = []time.Time{at(0)}
	starts := func(change ...func(*events.DeployFact)) []history.Record {
		return []history.Record{
			fact(t, 1, events.FactStarted, "1", append(change, one)...),
			fact(t, 2, events.FactCompleted, "1", one, took),
		}
	}
	ends := func(change ...func(*events.DeployFact)) []history.Record {
		return []history.Record{started, fact(t, 2, events.FactCompleted, "1", append(change, one)...)}
	}
	deleted := func(w history.ExpectedWorkload, second int) history.ExpectedWorkload {
		w.Deleted = at(second)
		return w
	}
	down := []history.Outage{{From: at(11), Until: at(19)}}
	for name, tc := range map[string]struct {
		records  []history.Record
		expected history.ExpectedWorkload
		outages  []history.Outage
		finds    string
	}{
		"completed": {[]history.Record{started, completed}, lifecycle(complete), nil, ""},
		"superseded": {[]history.Record{
			started, fact(t, 2, events.FactSuperseded, "1", one), fact(t, 3, events.FactStarted, "2", two), fact(t, 4,
				events.FactCompleted, "2", two, took),
		}, lifecycle(incomplete, second), nil, ""},
		"deleted in flight": {
			[]history.Record{started, fact(t, 2, events.FactCancelled, "1", one)},
			deleted(lifecycle(incomplete), 40), nil, "",
		},
		"missing":  {nil, lifecycle(complete), nil, "is missing"},
		"no end":   {[]history.Record{started}, lifecycle(complete), nil, "has no end"},
		"no start": {[]history.Record{completed}, lifecycle(complete), nil, "has the facts"},
		"two ends": {
			[]history.Record{started, completed, fact(t, 3, events.FactSuperseded, "1", one)},
			lifecycle(complete),
			nil, "has the facts",
		},
		"not in the cluster": {[]history.Record{started, completed}, lifecycle(), nil, "did not happen"},
		"completed too early": {
			[]history.Record{started, completed},
			lifecycle(incomplete), nil,
			"unexpected end completed",
		},
		"completed without a fact": {
			[]history.Record{started, fact(t, 2, events.FactSuperseded, "1", one)},
			lifecycle(complete, second), nil, "unexpected end superseded",
		},
		"cancelled without a cause": {
			[]history.Record{started, fact(t, 2, events.FactCancelled, "1", one)},
			lifecycle(incomplete), nil, "unexpected end cancelled",
		},
		"the next before the last": {
			[]history.Record{
				fact(t, 1, events.FactStarted, "2", two),
				fact(t, 2, events.FactCompleted, "2", two, took), fact(t, 3, events.FactStarted, "1", one), fact(t, 4,
					events.FactCompleted, "1", one, took),
			},
			lifecycle(complete, second), nil, "starts before",
		},
		"lost in an outage": {[]history.Record{fact(t, 1, events.FactGap, "1", gap)}, lifecycle(complete), down, ""},
		"lost without an outage": {
			[]history.Record{fact(t, 1, events.FactGap, "1", gap)},
			lifecycle(complete), nil,
			"is missing",
		},
		"lost in another outage": {
			[]history.Record{fact(t, 1, events.FactGap, "1", gap)},
			lifecycle(complete),
			[]history.Outage{{From: at(21), Until: at(30)}},
			"is missing",
		},
		"unknown in an outage": {
			[]history.Record{started, fact(t, 2, events.FactUnknown, "1", one, unknown)},
			lifecycle(complete), down, "",
		},
		"unknown without a reason": {
			[]history.Record{started, fact(t, 2, events.FactUnknown, "1", one, unknown)},
			lifecycle(complete), nil, "unexpected end unknown",
		},
		"start time of its object":          {starts(by(creation, 1)), timed, nil, ""},
		"start time of another object":      {starts(by(creation, 2)), timed, nil, ": started at"},
		"start time of the template change": {starts(by(written, 0)), timed, nil, ""},
		"start time matches no change":      {starts(by(written, 1)), timed, nil, ": started at"},
		"start time unknown":                {starts(by(written, 1), reconstructed), timed, nil, ""},
		"end time of the controller":        {ends(by(condition, 3), took), timed, nil, ""},
		"another end time":                  {ends(by(condition, 4), took), timed, nil, ": completed at"},
		"duration of the cluster": {ends(by(condition, 3),
			func(f *events.DeployFact) { f.DurationMs = new(2000) }), timed, nil, ""},
		"another duration": {ends(by(condition, 3),
			func(f *events.DeployFact) { f.DurationMs = new(3000) }), timed, nil, "differs from 2000 ms"},
		"duration unknown":    {ends(), timed, nil, "differs from 1000 ms"},
		"within an outage":    {nil, deleted(lifecycle(incomplete), 15), down, ""},
		"traced in an outage": {nil, deleted(lifecycle(traced), 15), down, "is missing"},
		"traced, and in a gap": {
			[]history.Record{fact(t, 1, events.FactGap, "1", gap)}, deleted(lifecycle(traced), 15), down, "",
		},
		"ended outside an outage": {nil, deleted(lifecycle(incomplete), 25), down, "is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := history.Rollouts(tc.records, []history.ExpectedWorkload{tc.expected}, tc.outages)
			if tc.finds == "" {
				require.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			require.Contains(t, found[0], tc.finds)
		})
	}
}
