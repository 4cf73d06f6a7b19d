package runners_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/tools/stack"
	"lockstep.internal/tools/testkit/runnerprogram"
)

// programFile passes artifacts from stage to stage. flaky fails once, since it can make the folder once only.
const programFile = `
stages: [build, test, deploy]
variables: {GIT_STRATEGY: none}
build:
  stage: build
  script:
    - echo the secret is $SECRET
    - mkdir -p out
    - head -c 20971520 /dev/urandom > out/large
    - echo made by build > out/a.txt
  after_script: [echo from after_script]
  artifacts: {paths: [out/]}
test:
  stage: test
  script: [cat out/a.txt, wc -c < out/large]
flaky:
  stage: test
  script: [if mkdir %s; then exit 1; fi]
  retry: 1
lint:
  stage: test
  script: [exit 3]
  allow_failure: true
slow:
  stage: test
  script: [sleep 300]
  timeout: 10 seconds
  allow_failure: true
deploy:
  stage: deploy
  script: [cat out/a.txt]
`

// TestRealRunnerRunsAPipelineThroughTheRouter runs jobs with the gitlab-runner program.
func TestRealRunnerRunsAPipelineThroughTheRouter(t *testing.T) {
	t.Parallel()
	program := runnerprogram.Find(t)
	c := start(t, stack.Options{Router: true})
	program.Register(t, c.RouterURL(), c.runner(untagged()), 4)
	program.Verify(t)
	program.Start(t)
	file := fmt.Sprintf(programFile, filepath.Join(t.TempDir(), "made"))
	p := c.ended(c.pipeline(c.project, file).GetId())
	require.Equal(t, runnersv1.PipelineState_PIPELINE_STATE_SUCCESS, p.GetState(), p)
	require.EqualValues(t, 2, job(t, p, "flaky").GetAttempt())
	require.EqualValues(t, 3, job(t, p, "lint").GetExitCode())
	require.Equal(t, runnersv1.JobState_JOB_STATE_FAILED, job(t, p, "slow").GetState())
	built := c.trace(job(t, p, "build").GetId())
	require.Contains(t, built, "from after_script")
	require.NotContains(t, built, "sup3rs3cretvalue")
	require.Contains(t, c.trace(job(t, p, "test").GetId()), "\n20971520\n")
	require.Contains(t, c.trace(job(t, p, "deploy").GetId()), "made by build")
	for _, name := range []string{"build", "test", "deploy"} {
		require.True(t, job(t, p, name).GetTraceVerified(), name)
	}
}
