package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/pipeline"
	"lockstep.internal/services/runners/runner"
	"lockstep.internal/services/runners/schedule"
)

// Contacts has the last contacts of runners; a [Runners].
type Contacts interface {
	LastContacts(ctx context.Context, ids ...int64) (map[int64]time.Time, error)
}

// Registry has all runners of the cell. [runner.Registry] implements it.
type Registry interface {
	// All returns all runners by id. The caller does not change them, nor the slice.
	All() []*runner.Runner
}

const (
	// maxVerdicts is the maximum number of runners in an answer. maxNamed is the maximum number of jobs in a sentence.
	maxVerdicts, maxNamed = 500, 10
	// ruleOffline is the rule of a runner that does not ask for jobs.
	ruleOffline = "offline"
)

func (s *jobService) ExplainJob(
	ctx context.Context, r *connect.Request[runnersv1.ExplainJobRequest],
) (*connect.Response[runnersv1.ExplainJobResponse], error) {
	found, err := s.read(ctx, r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	message, err := s.message(ctx, found)
	if err != nil {
		return nil, err
	}
	out := &runnersv1.ExplainJobResponse{Job: message}
	prerequisites, err := s.views.Prerequisites(ctx, found.ID)
	if err != nil {
		return nil, err
	}
	for i := range prerequisites {
		out.Prerequisites = append(out.Prerequisites, prerequisiteMessage(&prerequisites[i]))
	}
	if !found.State.Final() {
		moved, err := s.views.LatestMove(ctx, found.OrganizationID)
		if err != nil {
			return nil, err
		}
		if out.Message = explainMove(moved, found.State); out.GetMessage() != "" {
			return connect.NewResponse(out), nil
		}
	}
	switch found.State {
	case job.Created:
		attempts, err := s.views.Attempts(ctx, found.PipelineID)
		if err != nil {
			return nil, err
		}
		out.Message = explainCreated(attempts, found)
	case job.Pending:
		if out.Runners, err = s.verdicts(ctx, found); err != nil {
			return nil, err
		}
		out.Message = explainPending(out.GetRunners())
		out.Runners = out.GetRunners()[:min(len(out.GetRunners()), maxVerdicts)]
	case job.Preparing:
		out.Message = explainPreparing(prerequisites)
	default:
		out.Message = explainState(found)
	}
	return connect.NewResponse(out), nil
}

// explainMove explains a job whose organization is not open in this cell; it returns an empty text for others.
func explainMove(m *move.Move, state job.State) string {
	switch {
	case m == nil, state == job.Running, state == job.Canceling:
		return ""
	case !m.Arrival && m.Phase == move.Copying:
		return fmt.Sprintf("No runner gets the job: its organization is being moved to cell %s. "+
			"The job waits for runners there when the move has begun, and here if it is canceled.", m.Cell)
	case !m.Arrival:
		return fmt.Sprintf("No runner of this cell gets the job: its organization is in cell %s, and the job follows with "+
			"its pipeline.", m.Cell)
	case m.Phase == move.Arriving:
		return fmt.Sprintf("No runner gets the job: its organization is being moved here from cell %s.", m.Cell)
	default:
		return ""
	}
}

// explainState explains a job that waits for no other jobs and no runner.
func explainState(j *job.Job) string {
	switch j.State {
	case job.Running:
		return fmt.Sprintf("The job does not wait: runner %d executes it.", j.RunnerID)
	case job.Canceling:
		return fmt.Sprintf("The job was canceled: runner %d ends it.", j.RunnerID)
	case job.Skipped:
		return "The job was skipped, because of how the jobs before it ended."
	default:
		if a := j.Admission; a != nil && a.Reason != "" && j.Last().Event == job.EventRejected {
			return "The job was not admitted: " + a.Reason
		}
		return fmt.Sprintf("The job does not wait: its state is %s.", j.State)
	}
}

// explainPreparing names the controllers that have not decided.
func explainPreparing(prerequisites []job.Prerequisite) string {
	var names []string
	for i := range prerequisites {
		if p := &prerequisites[i]; p.State == "asked" || p.State == "waiting" {
			names = append(names, strconv.Quote(p.Name))
		}
	}
	if len(names) == 0 {
		return "The job waits for admission."
	}
	return fmt.Sprintf("The job waits for admission by %s.", listed(names))
}

// listed joins names, of which it shows the first ones.
func listed(names []string) string {
	list := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if more := len(names) - maxNamed; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return list
}

// explainCreated names the jobs that a created job waits for.
func explainCreated(attempts []schedule.Attempt, j *job.Job) string {
	for i := range attempts {
		if attempts[i].Job.ID == j.ID && attempts[i].Delayed {
			return "The job failed before. It begins again after a delay, once the jobs before it have ended."
		}
	}
	names := pipeline.WaitsFor(statusesOf(attempts), j.Name)
	if len(names) == 0 {
		return "The job begins now."
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = strconv.Quote(name)
	}
	return fmt.Sprintf("The job waits for %s to end.", listed(quoted))
}

// explainPending counts the runners that take a job.
func explainPending(verdicts []*runnersv1.RunnerVerdict) string {
	matches := 0
	for _, v := range verdicts {
		if v.GetMatches() {
			matches++
		}
	}
	switch {
	case matches > 0:
		return fmt.Sprintf("The job waits until one of %d runners that take it is free and asks for a job.", matches)
	case len(verdicts) == 0:
		return "The job waits for a runner, but its project has none: create one."
	default:
		return fmt.Sprintf("The job waits for a runner, but none of %d takes it.", len(verdicts))
	}
}

// verdicts returns why each runner takes the job or does not: those with the fewest obstacles first. Who is no
// administrator sees the runners of the project.
func (s *jobService) verdicts(ctx context.Context, j *job.Job) ([]*runnersv1.RunnerVerdict, error) {
	caller, _ := access.CallerFrom(ctx)
	at, _ := s.directory.Place(project(j.ProjectID)) // a project without a place has the runners of the instance
	place := runner.Place{Groups: at.Groups, Organization: at.Organization}
	var candidates []*runner.Runner
	var ids []int64
	for _, r := range s.registry.All() {
		if caller.Admin || r.TakesProject(j.ProjectID, place) {
			candidates = append(candidates, r)
			ids = append(ids, r.ID)
		}
	}
	contacts, err := s.contacts.LastContacts(ctx, ids...)
	if err != nil {
		return nil, err
	}
	now := s.now()
	verdicts := make([]*runnersv1.RunnerVerdict, len(candidates))
	for i, r := range candidates {
		verdicts[i] = verdict(r, j, place, contacts[r.ID], now)
	}
	slices.SortStableFunc(verdicts, func(a, b *runnersv1.RunnerVerdict) int {
		return cmp.Compare(len(a.GetObstacles()), len(b.GetObstacles()))
	})
	return verdicts, nil
}

func verdict(r *runner.Runner, j *job.Job, place runner.Place, contact, now time.Time) *runnersv1.RunnerVerdict {
	status := runner.StatusOf(r.CreatedAt, contact, now)
	out := &runnersv1.RunnerVerdict{RunnerId: r.ID, Description: r.Description, Status: string(status)}
	for _, reason := range r.Explain(j, place, now) {
		out.Obstacles = append(out.Obstacles, &runnersv1.Obstacle{Rule: string(reason.Rule), Message: reason.String()})
	}
	if status != runner.Online {
		message := fmt.Sprintf("runner %d has never asked for jobs", r.ID)
		if !contact.IsZero() {
			message = fmt.Sprintf("runner %d last asked for jobs at %s", r.ID, contact.Format(time.RFC3339))
		}
		out.Obstacles = append(out.Obstacles, &runnersv1.Obstacle{Rule: ruleOffline, Message: message})
	}
	out.Matches = len(out.GetObstacles()) == 0
	return out
}
