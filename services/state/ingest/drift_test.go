package ingest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

func TestDriftIsRepairedOnce(t *testing.T) {
	t.Parallel()
	scaled := func(w workspace.Workspace) deploymentReport {
		s := running(w, 9)
		s.spec, s.available, s.generation = 3, 3, 2
		return s
	}
	for name, report := range map[string]func(w *fixture, a *fakeAgent, ide workspace.Workspace){
		"observed after the applied event": func(w *fixture, a *fakeAgent, ide workspace.Workspace) {
			a.appliesWithGeneration(ide, 1, 1)
			a.reportsDeployment(running(ide, 8))
			w.caughtUp()
			a.now = start().Add(time.Minute)
			a.reportsDeployment(scaled(ide))
		},
		"observed right after the applied event": func(w *fixture, a *fakeAgent, ide workspace.Workspace) {
			a.appliesWithGeneration(ide, 1, 1)
			a.reportsDeployment(running(ide, 8))
			a.reportsDeployment(scaled(ide))
			w.caughtUp()
			require.Empty(w.t, w.causes(ide.ID), "before the next tick")
			a.now = start().Add(time.Minute)
			a.ticks()
		},
		"observed before the applied event": func(w *fixture, a *fakeAgent, ide workspace.Workspace) {
			a.reportsDeployment(running(ide, 8))
			a.reportsDeployment(scaled(ide))
			w.caughtUp()
			require.Empty(w.t, w.causes(ide.ID))
			a.appliesWithGeneration(ide, 1, 1)
			w.caughtUp()
			a.now = start().Add(time.Minute)
			a.ticks()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a, ide := w.agent(7), w.workspace("ide")
			defer w.startConsumers(1)()
			report(w, a, ide)
			a.reportsDeployment(scaled(ide))
			w.caughtUp()
			require.Equal(t, []string{"drift running"}, w.causes(ide.ID))
			drifted := w.published("workspace.4." + ide.ID.String() + ".drifted")
			require.Len(t, drifted, 1)
			require.Equal(
				t,
				"Deployment ws-7-ide/ide was scaled to 3 by somebody else; it is applied again",
				drifted[0]["message"],
			)
			require.EqualValues(t, 2, drifted[0]["desired_revision"])
			require.Len(t, w.published("desired.7."+ide.ID.String()), 2)

			// Late events from before the repair are not drift. The repair itself is not drift either.
			a.appliesWithGeneration(ide, 2, 3)
			a.reportsDeployment(scaled(ide))
			back := running(ide, 10)
			back.generation, back.revision = 3, "2"
			a.reportsDeployment(back)
			w.caughtUp()
			require.Len(t, w.causes(ide.ID), 1)
			require.Equal(t, actualstate.Running, w.get(ide.ID).ActualState)
		})
	}
}

func TestResyncFindsDriftWithoutANewGeneration(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	same, annotated := w.workspace("same"), w.workspace("annotated")
	recreated, fresh := w.workspace("recreated"), w.workspace("fresh")
	defer w.startConsumers(0)()
	for _, ws := range []workspace.Workspace{same, annotated, recreated, fresh} {
		a.appliesWithGeneration(ws, 1, 1)
		a.reportsDeployment(running(ws, 8))
	}
	w.caughtUp()
	other, replaced := running(annotated, 9), running(recreated, 9)
	other.revision, replaced.uid = "0", "other"
	a.reportsDeployment(other)
	a.reportsDeployment(replaced)
	w.caughtUp()
	require.Empty(t, w.causes(annotated.ID))
	a.now = start().Add(time.Hour)
	a.begins("r1", "", 4, 10)
	a.now = start().Add(2 * time.Hour)
	a.appliesWithGeneration(fresh, 2, 1) // during the resync
	for _, s := range []deploymentReport{running(same, 8), other, replaced, running(fresh, 8)} {
		a.reportsDeployment(member(s, "r1"))
	}
	w.caughtUp()
	a.ends("r1", 4)
	w.caughtUp()
	require.Empty(t, w.causes(same.ID))
	require.Equal(t, []string{"drift running"}, w.causes(annotated.ID))
	require.Equal(t, []string{"drift running"}, w.causes(recreated.ID))
	require.NotContains(t, w.causes(fresh.ID), "drift running")
}

func TestRepairsArePublished(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	a.appliesWithGeneration(ide, 1, 1)
	a.reports("applied", ide.ID, 1, map[string]any{"objects": []any{}, "repaired": []any{
		map[string]any{
			"api_version": "v1",
			"kind":        "Service",
			"namespace":   ide.Namespace,
			"name":        "ide",
		},
		map[string]any{"api_version": "v1", "kind": "Secret", "namespace": ide.Namespace, "name": "ide-env"},
	}})
	w.ingestAll()
	require.Empty(t, w.deadLetterReasons())
	drifted := w.published("workspace.4." + ide.ID.String() + ".drifted")
	require.Len(t, drifted, 2)
	require.Equal(
		t,
		"Service "+ide.Namespace+"/ide was changed or deleted by somebody else; it has been applied again",
		drifted[0]["message"],
	)
	require.Empty(t, w.causes(ide.ID), "no new revision")
}

func TestDeploymentWithoutLabelIsAppliedAgain(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	defer w.startConsumers(1)()
	a.appliesWithGeneration(ide, 1, 1)
	a.reportsDeployment(running(ide, 8))
	unlabelled := running(ide, 9)
	unlabelled.label = "somebody's"
	a.reportsDeployment(unlabelled)
	w.caughtUp()
	require.Equal(t, []string{"redispatch running"}, w.causes(ide.ID))
	a.appliesWithGeneration(ide, 2, 1)
	back := running(ide, 10)
	back.revision = "2"
	a.reportsDeployment(back)
	w.caughtUp()
	require.Equal(t, actualstate.Running, w.get(ide.ID).ActualState)
	require.Len(t, w.causes(ide.ID), 1)
	require.Empty(t, w.orphans(), "it is no longer an orphan")
}

func TestRevisionAfterADatabaseRestoreIsAboveTheClusters(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	superseded := map[string]any{
		"reason":           "Superseded",
		"message":          "m",
		"attempt":          1,
		"retry_after_ms":   0,
		"cluster_revision": 41,
	}
	a.reportsDeployment(running(ide, 8))
	a.reports("apply_failed", ide.ID, 1, superseded)
	a.reports("apply_failed", ide.ID, 1, superseded)
	w.ingestAll()
	require.Equal(t, []string{"redispatch running"}, w.causes(ide.ID))
	got := w.get(ide.ID)
	require.EqualValues(t, 42, got.DesiredRevision)
	require.Equal(t, actualstate.Running, got.ActualState, "no apply error")
	a.appliesWithGeneration(ide, 42, 1)
	w.ingestAll()
	require.EqualValues(t, 42, w.get(ide.ID).AppliedRevision)
}
