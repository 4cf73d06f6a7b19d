package ingest_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

func TestMembersInOneMessageCountAsEventsOfTheirOwn(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"in one batch": 0, "message by message": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a, here, behind, lost := w.agent(7), w.workspace("here"), w.workspace("behind"), w.workspace("lost")
			a.reportsDeployment(running(here, 8))
			a.reportsDeployment(running(behind, 4))
			a.reportsDeployment(running(lost, 8))
			a.begins("r1", "", 3, 9)
			a.reportsDeployment(running(here, 12)) // a change before the members
			a.reportsPage("r1", func(a *fakeAgent) {
				a.reportsDeployment(member(running(here, 8), "r1"))
				a.reportsDeployment(member(running(behind, 7), "r1"))
			})
			a.reportsPage("r1", func(a *fakeAgent) { a.reportsDeployment(member(running(here, 8), "r1")) }) // repeated
			alone := w.workspace("alone")
			a.reportsDeployment(member(running(alone, 5), "r1")) // by an earlier watcher, or after a failure
			a.ends("r1", 3)
			stop := w.startConsumers(batch)
			w.caughtUp()
			stop()
			require.Equal(t, "complete", w.outcome("r1"))
			require.Equal(t, object{Version: "12", Epoch: 1}, w.object("here"))
			require.Equal(t, object{Version: "7", Epoch: 1}, w.object("behind"), "a resync repairs what was lost")
			require.Equal(t, object{Version: "8", Epoch: 1, Deleted: true}, w.object("lost"))
			require.Equal(t, actualstate.Running, w.get(behind.ID).ActualState)
			require.Empty(t, w.deadLetterReasons())
		})
	}
}

func TestMalformedMemberHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, here, bad, lost := w.agent(7), w.workspace("here"), w.workspace("bad"), w.workspace("lost")
	a.reportsDeployment(running(lost, 8))
	a.begins("r1", "", 2, 9)
	a.reportsPage("r1", func(a *fakeAgent) {
		a.observeDeployment(a.deployment(bad, func(d *events.ObservedWorkload) { d.Object.ResourceVersion = "08" }))
		a.reportsDeployment(member(running(here, 8), "r1"))
	})
	a.ends("r1", 2)
	w.ingestAll()
	require.Equal(t, actualstate.Running, w.get(here.ID).ActualState)
	dead := w.deadLetterReasons()
	require.Len(t, dead, 1)
	require.Contains(t, dead[0], "1 of 2 members are malformed, the others are processed; first: member 0")
	require.Equal(t, "incomplete", w.outcome("r1"))
	require.False(t, w.object("lost").Deleted, "the malformed member may be this object")
}

func TestMessageOfMembersIsLimited(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, here := w.agent(7), w.workspace("here")
	subject, source := cell.ObservedMembers(7), event.AgentSource("local", 7, "watcher")
	a.reportsPage("r1", func(a *fakeAgent) {
		for version := range 1001 {
			s := running(here, version+1)
			s.name = "n" + strconv.Itoa(version)
			a.reportsDeployment(member(s, "r1"))
		}
	})
	a.publish(subject, "observed.workload.v1", source, "1", a.deployment(here, func(*events.ObservedWorkload) {}))
	page := events.ObservedMembers{ResyncID: "r1", ClusterUID: a.cluster, ObservedAt: a.now}
	a.publish(subject, "observed.members.v1", source, "2", page)
	page.Members = []events.ResyncMember{{Type: events.TypeObservedTick, Data: []byte(`{}`)}}
	a.publish(subject, "observed.members.v1", source, "3", page)
	a.publish(cell.ObservedTick(7), "observed.members.v1", source, "4", page)
	a.reportsPage("another", func(a *fakeAgent) { a.reportsDeployment(member(running(here, 8), "r1")) })
	w.ingestAll()
	dead := w.deadLetterReasons()
	require.Len(t, dead, 6)
	for n, reason := range []string{
		"/members", "does not belong on subject", "/members", "unknown to this version", "does not belong on subject",
		"differs from the message",
	} {
		require.Contains(t, dead[n], reason)
	}
	require.Zero(t, w.count(`select count(*) from observed_objects`))
}
