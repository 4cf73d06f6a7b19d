package ingest_test

import (
	"encoding/json"
	"strconv"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/actualstate"
)

const scopeWorkloads = string(events.ScopeWorkloads)

// follows sends what a watcher tells of a Deployment whose rollouts are followed, and of its ReplicaSet.
func (a *fakeAgent) follows(name string, version int, resync string) {
	a.t.Helper()
	subject := cell.ObservedWorkload(a.id, "deployment", "shop", name)
	a.observe(subject, "observed.workload.v1", events.ObservedWorkload{
		Object: a.meta("shop", name, version, false, resync, ""), Kind: events.WorkloadKindDeployment, Replicas: 1,
	})
	a.observe(subject, "observed.workload_revision.v1", events.ObservedWorkloadRevision{
		Object: a.meta(
			"shop",
			name+"-h",
			version+1,
			false,
			resync,
			"",
		),
		Kind:        events.WorkloadRevisionKindReplicaset,
		Workload:    name,
		WorkloadUID: "uid-" + name,
		Revision:    1,
	})
}

func (a *fakeAgent) beginsWorkloads(resync, nonce string, count, version int) {
	a.t.Helper()
	a.observe(cell.ObservedResync(a.id), "observed.resync_begun.v1", map[string]any{
		"resync_id":     resync,
		"cluster_uid":   a.cluster,
		"cause":         "start",
		"count":         count,
		"nonce":         nonce,
		"observed_at":   a.now,
		"scope":         scopeWorkloads,
		"list_versions": []events.ListVersion{{Kind: "deployment", ResourceVersion: strconv.Itoa(version)}},
	})
}

func (a *fakeAgent) endsWorkloads(resync string, count int) {
	a.t.Helper()
	a.observe(cell.ObservedResync(a.id), "observed.resync_ended.v1", map[string]any{
		"resync_id": resync, "cluster_uid": a.cluster, "count": count, "observed_at": a.now, "scope": scopeWorkloads,
	})
}

func (w *fixture) count(sql string) int {
	w.t.Helper()
	var n int
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), sql).Scan(&n))
	return n
}

func TestReportsOfWorkloadsAreIgnored(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"in one batch": 0, "message by message": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			a, here, lost := w.agent(7), w.workspace("here"), w.workspace("lost")
			defer w.begin(batch)()
			a.reportsDeployment(running(here, 8))
			a.reportsDeployment(running(lost, 8))
			a.applies(here.ID, 1)
			a.applies(lost.ID, 1)
			w.caughtUp()

			// Begun and ended while one of the workspaces is under way, with a version below and then above all that is known.
			a.now = start().Add(time.Hour)
			a.begins("r1", "n", 1, 9)
			a.beginsWorkloads("w1", "n", 2, 5)
			a.follows("checkout", 4, "w1")
			a.endsWorkloads("w1", 2)
			a.beginsWorkloads("w2", "", 0, 1000)
			a.endsWorkloads("w2", 0)
			w.caughtUp()
			require.Equal(t, "open", w.outcome("r1"), "it is neither given up nor completed")
			require.False(t, w.object("lost").Deleted, "a full resync of workloads judges no workspace")

			a.reportsDeployment(member(running(here, 8), "r1"))
			a.follows("checkout", 6, "")
			a.observe(cell.ObservedRejected(7), "observed.rejected.v1", events.ObservedRejected{
				Object: a.meta(
					"shop",
					"fat",
					7,
					false,
					"",
					"",
				),
				Kind:    "deployment",
				Reason:  events.RejectedReasonTooLarge,
				Message: "m",
				Scope:   events.ScopeWorkloads,
			})
			a.ends("r1", 1)
			w.caughtUp()
			require.Equal(t, "complete", w.outcome("r1"))
			require.True(t, w.object("lost").Deleted)
			require.Equal(t, actualstate.Running, w.get(here.ID).ActualState)
			require.Equal(t, object{Version: "8", Epoch: 1, Resync: "r1"}, w.object("here"), "no new epoch")

			require.Equal(t, 2, w.count(`select count(*) from observed_objects`), "nothing of theirs is stored")
			require.Equal(t, 1, w.count(`select count(*) from resyncs`))
			require.Zero(t, w.count(`select count(*) from orphans`))
			require.Empty(t, w.dead())
		})
	}
}

func TestReportsOfWorkloadsAreNotDecoded(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.agent(7)
	a.raw(cell.ObservedWorkload(7, "deployment", "shop", "checkout"), natsgo.Header{}, "no event")
	a.raw(cell.ObservedWorkload(99, "deployment", "shop", "checkout"), natsgo.Header{}, "of an agent that does not exist")
	a.raw(cell.ObservedClusterReleased("cluster"), natsgo.Header{}, "of no agent at all")
	// Elsewhere the word is a name like any other.
	ide := w.workspace("workload")
	a.reportsDeployment(running(ide, 8))
	a.publish(
		cell.Observed(7, "deployment", "workload", "ide"),
		"observed.deployment.v1",
		event.AgentSource("local", 7, "watcher"),
		"1",
		json.RawMessage(`"x"`),
	)
	w.ingestAll()
	require.Len(t, w.dead(), 1, "what is no workload is judged")
	require.Equal(t, actualstate.Running, w.get(ide.ID).ActualState)
}
