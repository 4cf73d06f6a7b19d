package history_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/tools/history"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	state := event.ServiceSource(string(cell), "state")
	good := events.Applied{WorkspaceID: id, DesiredRevision: 1, Objects: []events.ObjectReference{}}
	requireEvents := func(stream string, cases []faulty) {
		for _, s := range topology.Streams() {
			if s.Name == stream {
				requireFound(t, cases, func(all []history.Record) history.Findings { return history.Events(cell, s, all) })
			}
		}
	}
	requireEvents(topology.StreamApplied, []faulty{
		{"sound", func(b *builder) { b.applied(1).applied(1).applied(2) }, ""},
		{"no event", func(b *builder) {
			b.all = append(b.all, history.Record{Subject: "lockstep.local.applied.6." + id, Data: []byte("{}")})
		}, "is no event"},
		{"does not fit its schema", func(b *builder) {
			b.add(cell.Applied(agent, id), event.AgentSource(string(cell), agent, "dispatcher"), events.TypeApplied,
				map[string]any{})
		}, "does not fit its schema"},
		{"another's subject", func(b *builder) {
			b.add(cell.Desired(agent, id), event.AgentSource(string(cell), agent, "dispatcher"), events.TypeApplied, good)
		}, "is no subject of"},
		{"another agent's", func(b *builder) {
			b.add(cell.Applied(agent, id), event.AgentSource(string(cell), agent+1, "dispatcher"), events.TypeApplied, good)
		}, "was written by"},
		{
			"another service's",
			func(b *builder) { b.add(cell.Applied(agent, id), state, events.TypeApplied, good) },
			"was written by",
		},
		{"down again", func(b *builder) { b.applied(2).applied(1) }, "goes down from 2 to 1"},
	})
	requireEvents(topology.StreamWorkspaces, []faulty{
		{"published twice", func(b *builder) { b.created(); b.all = append(b.all, b.all[0]) }, "is published twice"},
	})
}

func TestWorkspaces(t *testing.T) {
	t.Parallel()
	const (
		running, stopped = events.DesiredStateRunning, events.DesiredStateStopped
		restart          = events.DesiredStateRestartRequested
		user             = events.DesiredStateCauseUser
		drift            = events.DesiredStateCauseDrift
		completed        = events.DesiredStateCauseRestartCompleted
		requested        = events.ActualStateCreationRequested
	)
	requireFound(t, []faulty{
		{"sound", func(b *builder) {
			b.created().became(requested, events.ActualStateStarting, false).
				desires(2, running, stopped, user).drifted(2).drifted(3).
				desires(3, stopped, stopped, drift).
				becameWith(stopped, events.ActualStateStarting, events.ActualStateStopped, false)
		}, ""},
		{"a sound restart", func(b *builder) {
			b.created().desires(2, running, restart, user).becameWith(restart, requested, events.ActualStateStopped, false).
				desires(3, restart, running, completed).became(events.ActualStateStopped, events.ActualStateStarting, false)
		}, ""},
		{"a restart completes before the stop", func(b *builder) {
			b.created().desires(2, running, restart, user).desires(3, restart, running, completed)
		}, "the restart completes before the workspace is stopped"},
		{"a state before its desired state", func(b *builder) {
			b.created().becameWith(stopped, requested, events.ActualStateStopped, false)
		}, "with desired state stopped, but the stream has running"},
		{"a drift after its repair", func(b *builder) {
			b.created().desires(2, running, running, drift).drifted(2)
		}, "revision 2 precedes the drift that caused it"},
		{"a drift before the revision that drifted", func(b *builder) {
			b.created().drifted(3)
		}, "a drift causes revision 3"},
		{"created twice", func(b *builder) { b.created().created() }, "is created twice"},
		{"never created", func(b *builder) { b.desires(2, running, stopped, user) }, "changes before it is created"},
		{"a change is lost", func(b *builder) { b.created().desires(3, running, stopped, user) }, "from revision 1 to 3"},
		{
			"a change is published twice",
			func(b *builder) { b.created().desires(2, running, running, user).desires(2, running, running, user) },
			"from revision 2 to 2",
		},
		{
			"a change from another desired state",
			func(b *builder) { b.created().desires(2, stopped, running, user) },
			"event has previous desired state stopped, want running",
		},
		{
			"a change from another actual state",
			func(b *builder) { b.created().became(events.ActualStateStopped, events.ActualStateStarting, false) },
			"event has previous actual state stopped, want creation_requested",
		},
		{
			"not allowed",
			func(b *builder) { b.created().became(requested, events.ActualStateStarting, true) },
			"is not allowed",
		},
		{
			"failed without a reason",
			func(b *builder) { b.created().became(requested, events.ActualStateError, false) },
			"without a reason",
		},
		{"garbage", func(b *builder) { b.created(); b.all[0].Data = []byte("{") }, "unexpected end"},
	}, history.Workspaces)
}

func TestDesired(t *testing.T) {
	t.Parallel()
	published := (&builder{t: t}).created().
		desires(2, events.DesiredStateRunning, events.DesiredStateStopped, events.DesiredStateCauseUser).all
	requireFound(t, []faulty{
		{"sound", func(b *builder) { b.desired(1, 1).desired(2, 0) }, ""},
		{
			"sent twice",
			func(b *builder) { b.desired(1, 1).desired(2, 0).desired(2, 0) },
			"revision 2 of workspace w is sent after 2",
		},
		{"not sent", func(b *builder) { b.desired(2, 0) }, "revision 1 of workspace " + id + " is published and not sent"},
		{
			"not published",
			func(b *builder) { b.desired(1, 1).desired(2, 0).desired(3, 0) },
			"revision 3 of workspace w is sent and not published",
		},
	}, func(log []history.Record) history.Findings { return history.Desired(published, log) })
}

func TestApplied(t *testing.T) {
	t.Parallel()
	log := (&builder{t: t}).desired(1, 1).desired(2, 0).desired(3, 1).all
	requireFound(t, []faulty{
		{"sound, with one skipped and one repeated", func(b *builder) { b.applied(1).applied(1).applied(3).applied(3) }, ""},
		{
			"the last is missing",
			func(b *builder) { b.applied(2) },
			"revision 3 of workspace w was not applied; the last that was is 2",
		},
		{"nothing is applied", func(*builder) {}, "revision 3 of workspace w was not applied"},
		{
			"a lower one after it",
			func(b *builder) { b.applied(3).applied(2) },
			"revision 2 of workspace " + id + " is applied after 3",
		},
	}, func(applied []history.Record) history.Findings { return history.Applied(log, applied) })
	found := history.Applied(log, (&builder{t: t}).applied(3).applied(4).all)
	require.Len(t, found, 2)
	require.Contains(t, found[0], "revision 4 of workspace "+id+" is applied and was never desired")
}

func TestEffects(t *testing.T) {
	t.Parallel()
	log := (&builder{t: t}).desired(1, 1).desired(2, 1).desired(3, 0).desired(4, 1).all
	requireFound(t, []faulty{
		{"sound", func(b *builder) { b.observed("u", 1).observed("u", 3) }, ""},
		{
			"changed for nothing",
			func(b *builder) { b.observed("u", 1).observed("u", 4).observed("u", 5) },
			"has generation 4 after 3 manifests",
		},
		{"deleted, which counts as a change", func(b *builder) { b.observed("u", 3); b.gone("u", 4) }, ""},
		{"made again", func(b *builder) { b.observed("u", 1).observed("v", 1) }, "was made again"},
	}, func(observed []history.Record) history.Findings { return history.Effects(log, observed) })
}
