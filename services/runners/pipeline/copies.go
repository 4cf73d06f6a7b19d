package pipeline

import (
	"fmt"
	"strings"

	"lockstep.internal/services/runners/cifile"
	"lockstep.internal/services/runners/job"
)

// jobCopy is one of the jobs that a parallel job stands for, or the job itself.
type jobCopy struct {
	name         string
	index, total int // from 1 on; index 0 for a job that is not parallel
	matrix       []job.Variable
}

// copies returns the copies of a job in the order of their indices.
func copies(j *cifile.Job) []jobCopy {
	parallel := j.Parallel
	total := parallel.Copies()
	if len(parallel.Matrix) == 0 {
		if parallel.Total == 0 {
			return []jobCopy{{name: j.Name, total: 1}}
		}
		out := make([]jobCopy, total)
		for i := range out {
			out[i] = jobCopy{name: fmt.Sprintf("%s %d/%d", j.Name, i+1, total), index: i + 1, total: total}
		}
		return out
	}
	out := make([]jobCopy, 0, total)
	for _, entry := range parallel.Matrix {
		for _, combination := range combinations(entry) {
			values := make([]string, len(combination))
			for i, v := range combination {
				values[i] = v.Value
			}
			name := fmt.Sprintf("%s: [%s]", j.Name, strings.Join(values, ", "))
			out = append(out, jobCopy{name: name, index: len(out) + 1, total: total, matrix: combination})
		}
	}
	return out
}

// combinations returns all combinations of values. The last variable changes first.
func combinations(entry []cifile.Axis) [][]job.Variable {
	out := [][]job.Variable{nil}
	for _, axis := range entry {
		longer := make([][]job.Variable, 0, len(out)*len(axis.Values))
		for _, begin := range out {
			for _, value := range axis.Values {
				combination := make([]job.Variable, len(begin), len(begin)+1)
				copy(combination, begin)
				longer = append(longer, append(combination, job.Variable{Key: axis.Name, Value: value}))
			}
		}
		out = longer
	}
	return out
}
