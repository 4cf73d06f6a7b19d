package pipeline_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/pipeline"
)

// large has 1,000 jobs in 20 stages. Each but those of the first stage has 50 needs, if it has needs.
func large(hasNeeds bool) []pipeline.Status {
	jobs := make([]pipeline.Status, 1000)
	for i := range jobs {
		jobs[i] = status(fmt.Sprint(i), i/50, job.Created)
		if hasNeeds && i >= 50 {
			jobs[i].HasNeeds = true
			for n := range 50 {
				jobs[i].Needs = append(jobs[i].Needs, pipeline.Need{Group: fmt.Sprint(i - i%50 - 50 + n)})
			}
		}
	}
	return jobs
}

func BenchmarkAdvance(b *testing.B) {
	for name, jobs := range map[string][]pipeline.Status{"stages": large(false), "needs": large(true)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if got := len(pipeline.Advance(jobs)); got != 50 {
					b.Fatal(got)
				}
			}
		})
	}
}

// BenchmarkNewPlan plans 1,000 jobs with rules and 100 variables each.
func BenchmarkNewPlan(b *testing.B) {
	var content strings.Builder
	content.WriteString("variables:\n")
	for i := range 60 {
		fmt.Fprintf(&content, "  V%d: value of $CI_PROJECT_NAME\n", i)
	}
	for i := range 10 {
		fmt.Fprintf(&content, "j%d: {script: make, parallel: 100, rules: [{if: '$CI_COMMIT_BRANCH =~ /^feature/'}, {if: $CI}]}\n", i)
	}
	file, err := cifile.Parse(fileName, []byte(content.String()), cifile.Limits{})
	require.NoError(b, err)
	in := input()
	for i := range 15 {
		in.Variables = append(in.Variables, job.Variable{Key: fmt.Sprintf("U%d", i), Value: "of the $V1 user"})
	}
	for b.Loop() {
		plan, err := pipeline.NewPlan(file, in)
		if err != nil || len(plan.Jobs) != 1000 {
			b.Fatal(err)
		}
	}
}
