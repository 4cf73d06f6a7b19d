package ingest_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/orphan"
	"lockstep.internal/services/state/republish"
	"lockstep.internal/services/state/workspace"
)

// orphans returns the names of all orphans.
func (w *fixture) orphans() []string {
	w.t.Helper()
	found, err := w.ingestStores.Orphans(w.t.Context(), w.pool, nil, orphan.Orphan{}, 100)
	require.NoError(w.t, err)
	names := make([]string, 0, len(found))
	for _, o := range found {
		names = append(names, o.String())
	}
	return names
}

// newOrphan returns a Deployment of agent 7 with the label of an unknown workspace.
func newOrphan(name string) deploymentReport {
	return deploymentReport{
		name:      name,
		workspace: uuid.NewSHA1(uuid.NameSpaceDNS, []byte(name)),
		version:   8,
		spec:      1,
		available: 1,
		revision:  "5",
	}
}

// delete requests the deletion of an orphan of agent 7 as the API does.
func (w *fixture) delete(name string) orphan.Orphan {
	w.t.Helper()
	var after orphan.Orphan
	w.tx(func(tx pgx.Tx) error {
		before, err := w.ingestStores.In(tx).LockOrphan(w.t.Context(), 7, "ws-7-"+name, name)
		if err != nil {
			return err
		}
		observed, err := w.ingestStores.OrphanObservations(w.t.Context(), tx, []orphan.Orphan{before})
		if err != nil {
			return err
		}
		others, err := w.ingestStores.In(tx).LockDeletions(w.t.Context(), []int64{7}, []string{before.Label})
		if err != nil {
			return err
		}
		if after, err = before.Delete(9, observed[0].Revision, others); err != nil {
			return err
		}
		return w.saveOrphan(tx, orphan.Update{Before: before, After: after, At: start()})
	})
	return after
}

// saveOrphan stores a changed orphan and publishes the change, as the API does.
func (w *fixture) saveOrphan(tx pgx.Tx, update orphan.Update) error {
	if err := w.ingestStores.In(tx).SaveOrphan(w.t.Context(), update.After); err != nil {
		return err
	}
	messages, err := encoder().Orphan(w.t.Context(), update)
	if err != nil {
		return err
	}
	return w.ingestStores.In(tx).InsertMessages(w.t.Context(), messages...)
}

// expiringRevisions returns the desired revisions of messages with a TTL.
func (w *fixture) expiringRevisions(subject string) []int {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `
		select (convert_from(data, 'UTF8')::jsonb->>'desired_revision')::int from outbox
		where subject like $1 and header->'Nats-TTL'->>0 = '1h0m0s' order by id`, "lockstep.local."+subject)
	require.NoError(w.t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(w.t, err)
	return found
}

func TestOrphanExistsAsLongAsItsDeployment(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"one by one": 1, "in one batch": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a := w.agent(7)
			deleted, renamed, absent, stays := newOrphan(
				"deleted",
			), newOrphan(
				"renamed",
			), newOrphan(
				"absent",
			), newOrphan(
				"stays",
			)
			for _, s := range []deploymentReport{deleted, renamed, absent, stays} {
				a.reportsDeployment(s)
			}
			a.begins("r1", "", 2, 9)
			a.reportsDeployment(member(renamed, "r1"))
			a.reportsDeployment(member(stays, "r1"))
			deleted.version, deleted.deleted = 10, true
			a.reportsDeployment(deleted)
			a.ends("r1", 2)
			ide := w.workspace("renamed")
			renamed.version, renamed.workspace = 11, ide.ID
			a.reportsDeployment(renamed)
			stays.version, stays.uid = 12, "uid-2"
			a.reportsDeployment(stays)
			stop := w.startConsumers(batch)
			defer stop()
			w.caughtUp()
			require.Equal(t, []string{"7/ws-7-stays/stays"}, w.orphans())
			a.reportsDeployment(stays)
			w.caughtUp()
			require.Equal(t, []string{"7/ws-7-stays/stays"}, w.orphans())
		})
	}
}

func TestObjectNamingAnotherAgentsWorkspaceIsAnOrphan(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ide, a, foreign := w.workspace("ide"), w.agent(7), w.agent(8)
	a.reportsDeployment(running(ide, 8))
	before := w.get(ide.ID)
	theirs := deploymentReport{name: "copy", workspace: ide.ID, version: 20, spec: 0, revision: "3"}
	foreign.cluster = "cluster-2"
	foreign.begins("r8", "", 1, 30)
	foreign.reportsDeployment(member(theirs, "r8"))
	foreign.ends("r8", 1)
	w.ingestAll()
	require.Empty(t, w.deadLetterReasons())
	require.Equal(t, "complete", w.outcome("r8"), "it counts")
	require.Equal(t, []string{"8/ws-8-copy/copy"}, w.orphans())
	require.Equal(t, []any{"ide"}, []any{before.Name})
	require.Equal(t, actualstate.Running, w.get(ide.ID).ActualState, "the workspace does not change")
	require.Len(t, w.published("workspace.0."+ide.ID.String()+".orphaned"), 1)
}

func TestDeletedOrphanIsRemoved(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, s := w.agent(7), newOrphan("left")
	defer w.startConsumers(1)()
	a.reportsDeployment(s)
	w.caughtUp()
	o := w.delete("left")
	require.EqualValues(t, 6, o.DesiredRevision, "above the applied revision")
	desired := w.published("desired.7." + s.workspace.String())
	require.Len(t, desired, 1)
	require.Equal(t, "terminated", desired[0]["target"])
	require.Equal(t, "ws-7-left", desired[0]["namespace"])
	require.Len(t, desired[0]["manifests"], 11)

	// The first deletion fails.
	a.reports(
		"apply_failed",
		s.workspace,
		6,
		map[string]any{"reason": "Forbidden", "message": "the cluster forbids it", "attempt": 1, "retry_after_ms": 1000},
	)
	w.caughtUp()
	found, err := w.ingestStores.Orphans(t.Context(), w.pool, []int64{7}, orphan.Orphan{}, 10)
	require.NoError(t, err)
	require.Equal(t, "the cluster forbids it", found[0].Message)
	require.True(t, found[0].BeingDeleted())

	// The cluster has a higher revision. The next request is above it.
	a.reports(
		"apply_failed",
		s.workspace,
		6,
		map[string]any{"reason": "Superseded", "message": "m", "attempt": 1, "retry_after_ms": 0, "cluster_revision": 30},
	)
	w.caughtUp()
	require.EqualValues(t, 31, w.published("desired.7." + s.workspace.String())[1]["desired_revision"])

	// The watcher reports the deletion before the dispatcher.
	s.deleted, s.version = true, 9
	a.reportsDeployment(s)
	w.caughtUp()
	require.Len(t, w.orphans(), 1)
	a.reports("terminating", s.workspace, 31, map[string]any{"remaining": []any{}})
	a.reports("terminated", s.workspace, 31, nil)
	w.caughtUp()
	require.Empty(t, w.orphans())
	require.Empty(t, w.published("workspace.0." + s.workspace.String() + ".orphan_deleted")[1:])
	deleted := w.published("workspace.0." + s.workspace.String() + ".orphan_deleted")[0]
	require.EqualValues(t, 9, deleted["user_id"])
	require.Equal(t, []int{31}, w.expiringRevisions("desired.7."+s.workspace.String()))

	// Duplicate events are ignored.
	a.reports("terminated", s.workspace, 31, nil)
	a.reports(
		"apply_failed",
		s.workspace,
		6,
		map[string]any{"reason": "Forbidden", "message": "m", "attempt": 1, "retry_after_ms": 1000},
	)
	w.caughtUp()
	require.Empty(t, w.deadLetterReasons())

	// A recreated Deployment is a new orphan.
	s.deleted, s.version, s.uid = false, 12, "uid-2"
	a.reportsDeployment(s)
	w.caughtUp()
	require.Len(t, w.orphans(), 1)
	require.EqualValues(t, 32, w.delete("left").DesiredRevision, "above all published revisions of the label")
}

func TestOrphanWithAnInvalidLabel(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	s := deploymentReport{name: "odd", label: "some.body's", version: 8, revision: "none"}
	a.reportsDeployment(s)
	w.ingestAll()
	require.EqualValues(t, 1, w.delete("odd").DesiredRevision)
	a.publishApplied("some.body's", "terminated", 1)
	a.publishApplied("nobody's", "terminated", 1)
	w.ingestAll()
	require.Empty(t, w.orphans())
	require.Len(t, w.deadLetterReasons(), 1)
	require.Contains(t, w.deadLetterReasons()[0], `workspace "nobody's" does not exist`)
}

func TestAdoptedOrphanIsAWorkspace(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, s := w.agent(7), newOrphan("left")
	s.spec, s.available = 0, 0
	defer w.startConsumers(1)()
	a.reportsDeployment(s)
	w.caughtUp()
	var made workspace.Workspace
	w.tx(func(tx pgx.Tx) error {
		o, err := w.ingestStores.In(tx).LockOrphan(t.Context(), 7, "ws-7-left", "left")
		require.NoError(t, err)
		observed, err := w.ingestStores.OrphanObservations(t.Context(), tx, []orphan.Orphan{o})
		require.NoError(t, err)
		var created []workspace.Event
		made, created, err = o.Adopt(
			observed[0],
			workspace.Creation{ProjectID: 4, UserID: 9, Template: "default", Spec: workspace.Spec{Image: "ide:9"}, Now: start()},
		)
		require.NoError(t, err)
		require.NoError(t, w.insert(tx, made, created...))
		return w.ingestStores.In(tx).RemoveOrphan(t.Context(), o)
	})
	require.Equal(t, s.workspace, made.ID)
	require.Equal(t, workspace.DesiredStopped, made.DesiredState, "as it is")
	require.EqualValues(t, 6, made.DesiredRevision)
	created := w.published("workspace.4." + made.ID.String() + ".created")
	require.Equal(t, true, created[0]["adopted"])
	require.Empty(t, w.orphans())
	a.appliesWithGeneration(made, 6, 1)
	s.version, s.revision = 9, "6"
	a.reportsDeployment(s)
	w.caughtUp()
	require.Equal(t, actualstate.Stopped, w.get(made.ID).ActualState)
	require.Empty(t, w.orphans())
	require.Empty(t, w.causes(made.ID))
}

func TestDesiredMessageOfATerminatedWorkspaceExpires(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide, stays := w.agent(7), w.workspace("ide"), w.workspace("stays")
	defer w.startConsumers(1)()
	a.applies(ide.ID, 1)
	w.desire(ide.ID, workspace.DesiredTerminated)
	a.reports("terminating", ide.ID, 2, map[string]any{"remaining": []any{}})
	w.caughtUp()
	require.Empty(t, w.expiringRevisions("desired.7.%"))
	a.reports("terminated", ide.ID, 2, nil)
	a.reports("terminated", ide.ID, 2, nil)
	w.caughtUp()
	require.Equal(t, actualstate.Terminated, w.get(ide.ID).ActualState)
	require.Equal(t, []int{2}, w.expiringRevisions("desired.7."+ide.ID.String()), "once")
	require.Empty(t, w.expiringRevisions("desired.7."+stays.ID.String()))

	// A restored stream may still contain desired state running.
	w.tx(func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `update workspaces set actual_state_changed_at = now() - interval '1 day'`)
		require.NoError(t, err)
		all := republish.Republisher{Workspaces: w.workspaces, Ingest: w.ingest()}
		return all.DesiredStates(t.Context(), tx)
	})
	require.Equal(t, []int{2, 2}, w.expiringRevisions("desired.7."+ide.ID.String()))
	require.Len(t, w.published("desired.7."+stays.ID.String()), 2)
}

func TestRevivedDeploymentIsAnOrphan(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, ide := w.agent(7), w.workspace("ide")
	defer w.startConsumers(1)()
	a.applies(ide.ID, 1)
	a.reportsDeployment(running(ide, 8))
	w.desire(ide.ID, workspace.DesiredTerminated)
	a.reports("terminated", ide.ID, 2, nil)
	w.caughtUp()
	a.reportsDeployment(running(ide, 9)) // a late event
	w.caughtUp()
	require.Empty(t, w.orphans())
	a.now = start().Add(time.Hour)
	a.begins("r1", "", 1, 20)
	a.reportsDeployment(member(running(ide, 19), "r1"))
	a.ends("r1", 1)
	w.caughtUp()
	require.Equal(t, []string{"7/ws-7-ide/ide"}, w.orphans())
	require.Len(t, w.published("workspace.0."+ide.ID.String()+".orphaned"), 1)
	o := w.delete("ide")
	a.reports("terminated", ide.ID, int(o.DesiredRevision), nil)
	w.caughtUp()
	require.Empty(t, w.orphans())
	require.Empty(t, w.deadLetterReasons())
}
