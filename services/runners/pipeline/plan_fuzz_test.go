package pipeline_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

// FuzzPlan checks that any file that can be parsed becomes a plan that holds the promises of its documentation, or is
// refused with messages.
func FuzzPlan(f *testing.F) {
	for _, content := range []string{
		"job: {script: make}", "a: {script: x, needs: [b]}\nb: {script: x, needs: [{job: c, optional: true}]}",
		"j: {script: x, parallel: {matrix: [{A: [1, 2]}]}, rules: [{if: $A == '1', when: always, variables: {B: c}}]}",
		"stages: [a, b]\nk: {stage: a, script: x, parallel: 3}\nj: {stage: b, script: x, needs: [k]}",
		"a: {script: x, needs: [b]}\nb: {script: x, needs: [a]}", "a: {script: x, rules: [{if: $X =~ /x/, when: never}]}",
		"a: {stage: .pre, script: x}\nb: {stage: .post, script: x, artifacts: {paths: [x]}}",
		"a: {script: x, parallel: 2, artifacts: {paths: [x]}}\n'a 1/2': {script: x}\nb: {stage: deploy, script: x}",
	} {
		f.Add([]byte(content), "value")
	}
	limits := cifile.Limits{Bytes: 4096, Weight: 20_000, Jobs: 100, Parallel: 70, Total: 100_000}
	f.Fuzz(func(t *testing.T, content []byte, value string) {
		file, err := cifile.Parse(fileName, content, limits)
		if err != nil {
			return
		}
		in := with("X", value)
		in.Limits = cifile.Limits{Jobs: 80, Total: 150_000}
		plan, err := pipeline.NewPlan(file, in)
		if err != nil {
			var problems *cifile.Error
			require.ErrorAs(t, err, &problems)
			require.NotEmpty(t, problems.Problems)
			for _, p := range problems.Problems {
				require.Positive(t, p.Line)
				require.NotEmpty(t, p.Message)
			}
			return
		}
		checkPlan(t, plan.Jobs)
	})
}

func checkPlan(t *testing.T, jobs []pipeline.Job) {
	require.NotEmpty(t, jobs)
	require.LessOrEqual(t, len(jobs), 80)
	seen, groups, stage := map[string]bool{}, map[string]bool{}, 0
	for _, j := range jobs {
		require.GreaterOrEqual(t, j.StageIndex, stage)
		stage = j.StageIndex
		require.NotEmpty(t, j.Name)
		require.LessOrEqual(t, len(j.Name), 255)
		require.False(t, seen[j.Name], j.Name)
		seen[j.Name] = true
		require.NotEmpty(t, j.Definition.Script)
		require.Positive(t, j.Timeout)
		require.Contains(t, []job.When{job.OnSuccess, job.OnFailure, job.Always}, j.When)
		require.True(t, j.HasNeeds || len(j.Needs) == 0)
		for _, need := range j.Needs {
			require.True(t, groups[need.Group], "%s needs %s, which does not come before it", j.Name, need.Group)
			require.NotEqual(t, j.Group, need.Group)
		}
		groups[j.Group] = true
		keys := map[string]bool{}
		for _, v := range j.Definition.Variables {
			require.False(t, keys[v.Key], v.Key)
			keys[v.Key] = true
		}
	}
	for _, j := range jobs {
		require.LessOrEqual(t, len(pipeline.ArtifactJobs(statuses(jobs), j.Name)), jobtoken.MaxArtifactJobs)
	}
}
