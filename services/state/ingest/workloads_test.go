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

// publishWorkload publishes the events of a workload Deployment and its ReplicaSet.
func (a *fakeAgent) publishWorkload(name string, version int, resync string) {
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
			defer w.startConsumers(batch)()
			a.reportsDeployment(running(here, 8))
			a.reportsDeployment(running(lost, 8))
			a.applies(here.ID, 1)
			a.applies(lost.ID, 1)
			w.caughtUp()

			// A workloads resync runs during a workspaces resync, with lower and then with higher versions.
			a.now = start().Add(time.Hour)
			a.begins("r1", "n", 1, 9)
			a.beginsWorkloads("w1", "n", 2, 5)
			a.publishWorkload("checkout", 4, "w1")
			a.endsWorkloads("w1", 2)
			a.beginsWorkloads("w2", "", 0, 1000)
			a.endsWorkloads("w2", 0)
			w.caughtUp()
			require.Equal(t, "open", w.outcome("r1"), "the workspaces resync stays open")
			require.False(t, w.object("lost").Deleted, "a workloads resync does not mark workspace objects as absent")

			a.reportsDeployment(member(running(here, 8), "r1"))
			a.publishWorkload("checkout", 6, "")
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
			require.Equal(t, object{Version: "8", Epoch: 1}, w.object("here"), "no new epoch")

			require.Equal(t, 2, w.count(`select count(*) from observed_objects`), "no object of a workload is stored")
			require.Equal(t, 1, w.count(`select count(*) from resyncs`))
			require.Zero(t, w.count(`select count(*) from orphans`))
			require.Empty(t, w.deadLetterReasons())
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
	// In another position, "workload" is an ordinary name.
	ide := w.workspace("workload")
	a.reportsDeployment(running(ide, 8))
	a.publish(
		cell.Observed(7, "deployment", "workload", "ide"),
		"observed.workload.v1",
		event.AgentSource("local", 7, "watcher"),
		"1",
		json.RawMessage(`"x"`),
	)
	w.ingestAll()
	require.Len(t, w.deadLetterReasons(), 1, "only the other message is rejected")
	require.Equal(t, actualstate.Running, w.get(ide.ID).ActualState)
}
