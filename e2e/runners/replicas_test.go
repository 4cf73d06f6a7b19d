package runners_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/e2e/fixture"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/runnerclient"
)

// replicasFile has jobs that a runner executes while a replica ends. A runner does not repeat an upload whose
// connection broke, so the job may fail once.
const replicasFile = `
stages: [build, test]
build: {stage: build, script: [make], parallel: 3, retry: 2, artifacts: {paths: [out/]}}
slow-%d: {stage: build, script: [sleep]}
test: {stage: test, script: [make test], retry: 2}
`

// TestTwoReplicasOfBothServices kills or stops one replica of runners and of router while runners execute jobs.
func TestTwoReplicasOfBothServices(t *testing.T) {
	t.Parallel()
	cellAddress, routerAddress := startBalancer(t), startBalancer(t)
	c := start(t, stack.Options{
		Router: true, Programs: fixture.BuildReleaseServices(t),
		Configure: func(_ string, config any) {
			if cfg, is := config.(*runners.Config); is {
				cfg.Cell.URL, cfg.Queue.ConfirmTimeout = cellAddress.URL(), 5*time.Second
			}
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for service, address := range map[string]*balancer{stack.Runners: cellAddress, stack.Router: routerAddress} {
		second, err := c.AddReplica(ctx, service)
		require.NoError(t, err)
		address.use(c.Address(service, stack.ListenerAPI), c.Address(second, stack.ListenerAPI))
	}
	done := &executions{all: map[int64][]executed{}}
	restarted := []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})}
	begun := make(chan int, 100)
	for i := range 2 {
		runAs(t, runnerclient.Config{
			URL: routerAddress.URL(), Token: c.runner(untagged()), SystemID: "s_" + strconv.Itoa(i),
			MaxWait: 300 * time.Millisecond,
		}, runnerclient.Runs{
			Concurrency: 4,
			Script: func(j *runnerclient.Job) runnerclient.Script {
				var round int
				if _, err := fmt.Sscanf(j.JobInfo.Name, "slow-%d", &round); err == nil {
					begun <- round
				}
				return roundScript(j, restarted)
			},
			Done: func(j *runnerclient.Job, r runnerclient.Result, err error) {
				if err == nil {
					done.add(j, r)
				} else if t.Context().Err() == nil {
					t.Errorf("job %d: %v", j.ID, err)
				}
			},
		})
	}
	for round, away := range []struct {
		replica string
		end     func(string) error
	}{
		{stack.Router, c.Kill},
		{stack.Router + "#2", c.StopService},
		{stack.Runners + "#2", c.Kill},
		{stack.Runners + "#2", c.StopService},
	} {
		p := c.pipeline(c.project, fmt.Sprintf(replicasFile, round))
		for got := -1; got != round; {
			select {
			case got = <-begun:
			case <-ctx.Done():
				require.FailNow(t, "no runner gets the job", round)
			}
		}
		require.NoError(t, away.end(away.replica))
		// The job ends, and others are taken, while the replica is away.
		close(restarted[round])
		p = c.ended(p.GetId())
		require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, p.GetState(), p)
		for _, j := range p.GetJobs() {
			c.requireExecutedOnce(j, done)
		}
		require.NoError(t, c.StartService(ctx, away.replica))
	}
	c.requireRebuildFindsNothing()
}
