package reconcile

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/failure"
)

func TestRepairIsReportedWhenItChangedSomething(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, cluster, results, _ := startReconciler(t)
		r.put("w", "", events.DesiredTargetRunning)
		r.put("other", "", events.DesiredTargetRunning)
		time.Sleep(time.Minute)
		r.Repair(t.Context(), "operator")
		time.Sleep(time.Minute)
		require.Equal(t, 1, cluster.repaired("w"))
		require.Equal(t, 1, cluster.repaired("other"))
		kinds, _ := results.of("w")
		require.Equal(t, []string{"w/1/applied/1/r"}, kinds, "the repair changed nothing")

		policy := desired.Reference{ApiVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy", Namespace: "ws-w", Name: "w"}
		cluster.drift("w", policy)
		r.Repair(t.Context(), "operator")
		time.Sleep(time.Minute)
		kinds, _ = results.of("w")
		require.Equal(t, []string{"w/1/applied/1/r", "w/1/applied/1/r/2"}, kinds)
		var applied events.Applied
		require.NoError(t, json.Unmarshal(results.last("w").Data(), &applied))
		require.Equal(t, []events.ObjectReference{policy}, applied.Repaired)
		kinds, _ = results.of("other")
		require.Len(t, kinds, 1)
	})
}

func TestFailedRepairIsReportedWhenItLasts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, cluster, results, _ := startReconciler(t)
		r.put("w", "", events.DesiredTargetRunning)
		time.Sleep(time.Minute)
		cluster.fail(failure.New(failure.Unreachable, nil, "the cluster is unreachable"))
		r.Repair(t.Context(), "operator")
		time.Sleep(3 * time.Second)
		cluster.fail(nil)
		time.Sleep(time.Minute)
		kinds, _ := results.of("w")
		require.Equal(t, []string{"w/1/applied/1/r"}, kinds, "the first temporary failures are not published")

		cluster.fail(failure.New(failure.Forbidden, nil, "no"))
		r.Repair(t.Context(), "operator")
		time.Sleep(2 * time.Second)
		cluster.fail(nil)
		time.Sleep(time.Minute)
		kinds, _ = results.of("w")
		require.Equal(t, "w/1/apply_failed/1/r/2", kinds[1])
		require.Contains(t, kinds[len(kinds)-1], "w/1/applied/", "the recovery is published")

		cluster.fail(failure.New(failure.Unreachable, nil, "the cluster is unreachable"))
		r.Repair(t.Context(), "operator")
		time.Sleep(5 * time.Minute)
		kinds, _ = results.of("w")
		require.Contains(t, kinds[len(kinds)-1], "w/1/apply_failed/", "a lasting failure is published")
	})
}

func TestRejectedRevisionDoesNotBlockLowerOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, cluster, results, _ := startReconciler(t)
		r.put("w", "fails", events.DesiredTargetRunning)
		synctest.Wait()
		r.reject(t.Context(), desired.Workspace{ID: "w", Revision: 1 << 50}, failure.NewFinal(failure.Malformed, nil, "no"))
		time.Sleep(time.Hour)
		kinds, _ := results.of("w")
		require.Equal(
			t, []string{"w/1/apply_failed/1/r", "w/1125899906842624/apply_failed/1/r"}, kinds,
			"the lower revision is not retried",
		)
		require.Equal(t, 1, cluster.attempts["w"])
		r.Queue.Put("w", 2, &Item{workspace: desired.Workspace{ID: "w", Revision: 2, Target: events.DesiredTargetRunning}})
		synctest.Wait()
		kinds, _ = results.of("w")
		require.Equal(t, "w/2/applied/1/r", kinds[2])
	})
}
