package move

import (
	"encoding/json"
	"fmt"
	"time"

	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/stuck"
)

// Counts are what an organization has in this cell.
type Counts struct {
	Running, Pipelines, Artifacts, ArtifactBytes int64
	// PipelinesRunning are those with a job that a runner has.
	PipelinesRunning int64
}

// Situation is what a report is made from.
type Situation struct {
	OrganizationID int64
	// Waiting are the jobs that have not begun.
	Waiting []job.Job
	// Runners are all of this cell, and There those of the instance in the target.
	Runners, There []*runner.Runner
	// Place returns the position of a project, and false if it is not known.
	Place func(projectID int64) (runner.Place, bool)
	Now   time.Time
}

// Report is what a move would change.
type Report struct {
	// Unserved jobs would never be taken in the target.
	Unserved []job.Job
	// Staying are runners of the instance that could take jobs that wait now.
	Staying []int64
	// Runners of the organization.
	Runners int
}

// Report returns what a move would change. The runners of the organization move with it.
func (s Situation) Report() Report {
	var out Report
	there := append([]*runner.Runner{}, s.There...)
	var instance []*runner.Runner
	for _, r := range s.Runners {
		switch {
		case r.Type == runner.InstanceType:
			instance = append(instance, r)
		case r.OrganizationID == s.OrganizationID:
			there = append(there, r)
			out.Runners++
		}
	}
	stays := make(map[int64]bool, len(instance))
	for _, j := range s.Waiting {
		place, known := s.Place(j.ProjectID)
		if !known {
			continue
		}
		if !stuck.Matched(j, place, there, s.Now) {
			out.Unserved = append(out.Unserved, j)
		}
		for _, r := range instance {
			stays[r.ID] = stays[r.ID] || stuck.Matched(j, place, []*runner.Runner{r}, s.Now)
		}
	}
	for _, r := range instance {
		if stays[r.ID] {
			out.Staying = append(out.Staying, r.ID)
		}
	}
	return out
}

// InstanceRunners returns the runners of the instance of another cell.
func InstanceRunners(rows []*runnersv1.MovedRow) ([]*runner.Runner, error) {
	found := make([]*runner.Runner, len(rows))
	for i, row := range rows {
		var columns struct {
			ID          int64    `json:"id"`
			Tags        []string `json:"tags"`
			RunUntagged bool     `json:"run_untagged"`
			Protected   bool     `json:"protected"`
		}
		if err := json.Unmarshal(row.GetContent(), &columns); err != nil {
			return nil, fmt.Errorf("decode a runner of the other cell: %w", err)
		}
		found[i] = &runner.Runner{ID: columns.ID, Type: runner.InstanceType, Settings: runner.Settings{
			Tags: columns.Tags, RunUntagged: columns.RunUntagged, Protected: columns.Protected,
		}}
	}
	return found, nil
}
