package dispatcher

import (
	"context"
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
		r, cluster, results, _ := running(t)
		r.put("w", "", events.DesiredTargetRunning)
		r.put("other", "", events.DesiredTargetRunning)
		time.Sleep(time.Minute)
		r.repair(t.Context(), "operator")
		time.Sleep(time.Minute)
		require.Equal(t, 1, cluster.repaired("w"))
		require.Equal(t, 1, cluster.repaired("other"))
		kinds, _ := results.of("w")
		require.Equal(t, []string{"w/1/applied/1/r"}, kinds, "nothing was found")

		policy := desired.Reference{ApiVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy", Namespace: "ws-w", Name: "w"}
		cluster.drift("w", policy)
		r.repair(t.Context(), "operator")
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
		r, cluster, results, _ := running(t)
		r.put("w", "", events.DesiredTargetRunning)
		time.Sleep(time.Minute)
		cluster.fail(failure.New(failure.Unreachable, nil, "away"))
		r.repair(t.Context(), "operator")
		time.Sleep(3 * time.Second)
		cluster.fail(nil)
		time.Sleep(time.Minute)
		kinds, _ := results.of("w")
		require.Equal(t, []string{"w/1/applied/1/r"}, kinds, "the workspace has not suffered")

		cluster.fail(failure.New(failure.Forbidden, nil, "no"))
		r.repair(t.Context(), "operator")
		time.Sleep(2 * time.Second)
		cluster.fail(nil)
		time.Sleep(time.Minute)
		kinds, _ = results.of("w")
		require.Equal(t, "w/1/apply_failed/1/r/2", kinds[1])
		require.Contains(t, kinds[len(kinds)-1], "w/1/applied/", "and that it is well again")

		cluster.fail(failure.New(failure.Unreachable, nil, "away"))
		r.repair(t.Context(), "operator")
		time.Sleep(5 * time.Minute)
		kinds, _ = results.of("w")
		require.Contains(t, kinds[len(kinds)-1], "w/1/apply_failed/", "it lasts")
	})
}

func TestRefusedRevisionBlocksNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, cluster, results, _ := running(t)
		r.put("w", "fails", events.DesiredTargetRunning)
		synctest.Wait()
		r.refuse(t.Context(), desired.Workspace{ID: "w", Revision: 1 << 50}, failure.Refusal(failure.Malformed, nil, "no"))
		time.Sleep(time.Hour)
		kinds, _ := results.of("w")
		require.Equal(
			t, []string{"w/1/apply_failed/1/r", "w/1125899906842624/apply_failed/1/r"}, kinds,
			"what came before is not tried again",
		)
		require.Equal(t, 1, cluster.attempts["w"])
		r.queue.Put("w", 2, &job{workspace: desired.Workspace{ID: "w", Revision: 2, Target: events.DesiredTargetRunning}})
		synctest.Wait()
		kinds, _ = results.of("w")
		require.Equal(t, "w/2/applied/1/r", kinds[2])
	})
}

func TestRepairsStartOnRequestAndAtIntervals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type begun struct {
			cause string
			after time.Duration
		}
		start := time.Now()
		var got []begun
		r := newRepairs(func(_ context.Context, cause string) { got = append(got, begun{cause, time.Since(start)}) })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.run(ctx) }()
		time.Sleep(90 * time.Minute)
		r.Resync(t.Context(), events.ResyncRequested{Nonce: "n", Cause: events.ResyncRequestCauseOperator})
		time.Sleep(80 * time.Minute)
		r.Configure(t.Context(), events.AgentConfig{FullResyncIntervalMs: int(10 * time.Minute / time.Millisecond)})
		time.Sleep(25 * time.Minute)
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, []begun{
			{"interval", time.Hour},
			{"operator", 90 * time.Minute},
			{"interval", 150 * time.Minute},
			{"interval", 170 * time.Minute},
			{"interval", 180 * time.Minute},
			{"interval", 190 * time.Minute},
		}, got)
	})
}
