package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/client"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/runnerclient"
)

const (
	// demoJob is how long the demo's runner takes for a job.
	demoJob = time.Second
	// demoConcurrency is how many jobs it executes at once.
	demoConcurrency = 4
)

// demoRunner is the runner of a demo. It prints the lines of scripts instead of executing them, except exit, which ends
// a job with that exit code.
type demoRunner struct {
	client *runnerclient.Client
	cancel context.CancelFunc
	ended  sync.WaitGroup
	err    error
}

// startDemoRunner starts a runner of the instance.
func startDemoRunner(ctx context.Context, api *client.Runners, s *stack.Stack) (*demoRunner, error) {
	token, err := runnerToken(ctx, api, s, "demo-runner", "demo: prints scripts and executes nothing")
	if err != nil {
		return nil, err
	}
	r := &demoRunner{client: runnerclient.New(runnerclient.Config{
		URL: s.RouterURL(), Token: token, SystemID: "s_demo", MaxWait: demoJob,
	})}
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.ended.Go(func() {
		r.err = r.client.Run(ctx, runnerclient.Runs{Concurrency: demoConcurrency, Script: demoScript})
	})
	return r, nil
}

// runnerToken returns the token of a runner of the instance that takes jobs with the tags shell and zone_a, and
// jobs without tags. A file in the folder of the stack keeps it with the id of the runner. Without the file, or after
// the runner was deleted, it creates a runner.
func runnerToken(ctx context.Context, api *client.Runners, s *stack.Stack, file, description string) (string, error) {
	path := filepath.Join(s.Dir(), file)
	if kept, err := os.ReadFile(path); err == nil {
		var id int64
		var token string
		if _, err := fmt.Sscan(string(kept), &id, &token); err != nil {
			return "", fault.Wrap(err, errcode.FailedPrecondition, "%s is not complete: remove it", path)
		}
		_, err := api.Runners.GetRunner(ctx, connect.NewRequest(&runnersv1.GetRunnerRequest{Id: id}))
		if err == nil || !fault.Is(err, errcode.NotFound) {
			return token, err
		}
	}
	created, err := api.Runners.CreateRunner(ctx, connect.NewRequest(&runnersv1.CreateRunnerRequest{
		Type: runnersv1.RunnerType_RUNNER_TYPE_INSTANCE,
		Settings: &runnersv1.RunnerSettings{
			Description: description, Tags: []string{"shell", demoZone}, RunUntagged: true,
		},
	}))
	if err != nil {
		return "", fmt.Errorf("create the runner %q: %w", description, err)
	}
	token := created.Msg.GetToken()
	if err := os.WriteFile(path, fmt.Appendln(nil, created.Msg.GetRunner().GetId(), token), 0o600); err != nil {
		return "", fmt.Errorf("keep the token of the runner %q: %w", description, err)
	}
	return token, nil
}

func (r *demoRunner) close() error {
	if r == nil {
		return nil
	}
	r.cancel()
	r.ended.Wait()
	r.client.Close()
	if errors.Is(r.err, context.Canceled) {
		return nil
	}
	return r.err
}

// demoScript prints the lines of a job's script.
func demoScript(j *runnerclient.Job) runnerclient.Script {
	done := make(chan struct{})
	time.AfterFunc(demoJob, func() { close(done) })
	s := runnerclient.Script{Wait: done, Files: map[string][]byte{
		"out/" + j.JobInfo.Stage + ".txt": []byte("made by the demo's runner in job " + j.JobInfo.Name + "\n"),
	}}
	for _, step := range j.Steps {
		for _, line := range step.Script {
			text := "$ " + line
			switch code, exits := strings.CutPrefix(line, "exit "); {
			case step.Name != "script":
				s.After = append(s.After, text)
			case exits:
				s.Lines = append(s.Lines, text)
				s.ExitCode, _ = strconv.Atoi(code) // 0 for what is no number
			default:
				s.Lines = append(s.Lines, text)
			}
		}
	}
	return s
}
