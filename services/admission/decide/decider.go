package decide

import (
	"context"
	"slices"
	"time"

	"lockstep.internal/libs/retry"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/payload"
	"lockstep.internal/services/admission/policy"
)

// Surroundings are the copies of other services' data.
type Surroundings interface {
	// Groups returns the groups that contain a project, the innermost first; false if the project does not exist.
	Groups(projectID int64) ([]int64, bool)
	// GroupsOfUser returns the groups of which a user is a member.
	GroupsOfUser(userID int64) []int64
	// Runners returns the existing runners whose scope includes a job.
	Runners(projectID int64, protected bool) []policy.Runner
}

// Config of a [Decider]. All fields are required.
type Config struct {
	Surroundings Surroundings
	// Retry has the pauses between attempts.
	Retry retry.Policy
}

// Decider advances the admission of jobs. It is safe for concurrent use.
type Decider struct {
	cfg      Config
	compiled *compiled
}

// New returns a decider.
func New(cfg Config) *Decider { return &Decider{cfg: cfg, compiled: newCompiled()} }

// DefaultRetry returns the pauses between the attempts to ask a controller.
func DefaultRetry() retry.Policy { return retry.Policy{Min: time.Second, Max: 5 * time.Minute} }

// Begin begins the admission of a job by those of the controllers that decide about its project, and evaluates
// conditions and policies. evaluated is false if ctx ended before: the job is as it was before the evaluation.
func (d *Decider) Begin(
	ctx context.Context, s Subject, controllers []controller.Controller, at time.Time,
) (job Job, ask *Ask, evaluated bool) {
	j := d.begin(s, controllers, at)
	after, ask := d.Advance(ctx, j, nil, controllers, time.Time{}, at)
	if j.Open() && ctx.Err() != nil {
		return j, j.ask(at), false // what was evaluated does not count
	}
	return after, ask, true
}

func (d *Decider) begin(s Subject, controllers []controller.Controller, at time.Time) Job {
	groups, _ := d.cfg.Surroundings.Groups(s.ProjectID)
	known := make([]chain.Controller, len(controllers))
	for i, c := range controllers {
		known[i] = c.Chain()
	}
	order := chain.Order(known, chain.Place{ProjectID: s.ProjectID, GroupIDs: groups})
	j := Job{Subject: s}
	j.State, _ = chain.Begin(chain.Job{ID: s.JobID, Tags: s.Tags, Variables: s.Variables}, order, at)
	d.schedule(&j, controllers, Job{}, at)
	return j
}

// ask returns the question of an open job.
func (j *Job) ask(dueAt time.Time) *Ask {
	if !j.Open() {
		return nil
	}
	return &Ask{Question: j.question(), DueAt: dueAt}
}

func (j *Job) question() chain.Question {
	return chain.Question{ControllerID: j.State.Waiting[0].ID, Attempt: j.State.Attempt}
}

// Asks reports whether a question is the current one of the job.
func (j *Job) Asks(q chain.Question) bool { return j.Open() && j.question() == q }

// InRound reports whether an answer to a question would count: the controller is asked, and has not changed since.
func (j *Job) InRound(q chain.Question) bool {
	return j.Open() && q.ControllerID == j.State.Waiting[0].ID && q.Attempt >= j.State.FirstAttempt &&
		q.Attempt <= j.State.Attempt
}

// Same reports whether nothing has happened between two states of a job that is to be stored.
func Same(before, after Job) bool {
	if before.Open() != after.Open() || len(before.State.Records) != len(after.State.Records) {
		return false
	}
	return !before.Open() ||
		before.question() == after.question() && before.State.FirstAttempt == after.State.FirstAttempt
}

// schedule sets the times of a job that was advanced.
func (d *Decider) schedule(j *Job, controllers []controller.Controller, before Job, at time.Time) {
	if !j.Open() {
		j.AnswerBy, j.EndedAt = time.Time{}, at
		return
	}
	current := j.State.Waiting[0]
	if before.Open() && len(before.State.Waiting) > 0 && before.State.Waiting[0].ID == current.ID &&
		before.State.FirstAttempt == j.State.FirstAttempt {
		return
	}
	j.AnswerBy = j.Deadline
	if i := slices.IndexFunc(controllers, func(c controller.Controller) bool { return c.ID == current.ID }); i >= 0 {
		if by := at.Add(controllers[i].Timeout); by.Before(j.Deadline) {
			j.AnswerBy = by
		}
	}
}

// Advance applies an input to a job; nil for none. controllers are the current ones with the ids in its chain; one that
// is not there, or is deleted, is removed from the chain. retryAfter is the earliest time of the next attempt. It
// returns the job after the input and its question, nil after the end.
func (d *Decider) Advance(
	ctx context.Context, before Job, input chain.Input, controllers []controller.Controller, retryAfter, at time.Time,
) (Job, *Ask) {
	if !before.Open() {
		return before, nil
	}
	j := before
	runners := d.cfg.Surroundings.Runners(j.ProjectID, j.Protected)
	inputs := append([]chain.Input{chain.RunnersChanged{Runners: chainRunners(runners)}}, current(j, controllers)...)
	if input != nil {
		inputs = append(inputs, input)
	}
	for _, in := range inputs {
		j.State, _ = chain.Advance(j.State, in, at)
	}
	asked := j
	d.evaluate(ctx, &j, controllers, runners, at)
	j.State.Job.Runners = nil
	d.schedule(&j, controllers, before, at)
	if !j.Open() {
		return j, nil
	}
	due := at
	if j.State.Attempt > j.State.FirstAttempt && asked.Open() && asked.question() == j.question() &&
		!before.Asks(j.question()) {
		due = at.Add(d.cfg.Retry.Delay(j.State.Attempt - j.State.FirstAttempt))
		if due.Before(retryAfter) {
			due = retryAfter
		}
	}
	return j, j.ask(due)
}

// Cancel ends the admission of a job that no longer waits for it.
func (d *Decider) Cancel(before Job, at time.Time) (Job, *Ask) {
	j := before
	j.State, _ = chain.Advance(j.State, chain.JobCanceled{}, at)
	d.schedule(&j, nil, before, at)
	return j, nil
}

// current returns the inputs that give a job the current controllers.
func current(j Job, controllers []controller.Controller) []chain.Input {
	var inputs []chain.Input
	for _, waiting := range j.State.Waiting {
		i := slices.IndexFunc(controllers, func(c controller.Controller) bool { return c.ID == waiting.ID })
		if i < 0 || controllers[i].Deleted {
			inputs = append(inputs, chain.ControllerDeleted{ControllerID: waiting.ID})
			continue
		}
		inputs = append(inputs, chain.ControllerChanged{Controller: controllers[i].Chain()})
	}
	return inputs
}

// evaluate evaluates conditions and policies until a web server is to be asked, or admission has ended.
func (d *Decider) evaluate(
	ctx context.Context, j *Job, controllers []controller.Controller, runners []policy.Runner, at time.Time,
) {
	for j.Open() {
		step := chain.Outstanding(j.State)
		i := slices.IndexFunc(controllers, func(c controller.Controller) bool { return c.ID == step.Controller.ID })
		if i < 0 {
			return // the caller has no longer all controllers, and tries again
		}
		question := chain.Question{ControllerID: step.Controller.ID, Attempt: step.Attempt}
		input, ok := d.decision(ctx, j, controllers[i], question, runners)
		if !ok {
			return
		}
		j.State, _ = chain.Advance(j.State, input, at)
	}
}

// decision returns what a controller without a web server decides; false if a web server must be asked.
func (d *Decider) decision(
	ctx context.Context, j *Job, c controller.Controller, q chain.Question, runners []policy.Runner,
) (chain.Input, bool) {
	failed := func(err error) (chain.Input, bool) {
		return chain.Failed{Question: q, Message: payload.Reason(err.Error()), Permanent: true}, true
	}
	if c.Match != "" && j.State.Attempt == j.State.FirstAttempt {
		condition, err := d.compiled.condition(c)
		if err != nil {
			return failed(err)
		}
		matches, err := condition.Matches(ctx, d.input(j, runners, c))
		if err != nil {
			return failed(err)
		}
		if !matches {
			return chain.NotMatched{Question: q}, true
		}
	}
	if c.Policy == "" {
		return nil, false
	}
	p, err := d.compiled.policy(c)
	if err != nil {
		return failed(err)
	}
	answer, err := p.Evaluate(ctx, d.input(j, runners, c))
	if err != nil {
		return failed(err)
	}
	return chain.Answered{Question: q, Answer: answer}, true
}

// input returns what conditions and policies know about a job.
func (d *Decider) input(j *Job, runners []policy.Runner, c controller.Controller) policy.Input {
	in := policy.Input{
		Job: policy.Job{
			ID: j.JobID, PipelineID: j.PipelineID, Name: j.Name, Stage: j.Stage, Tags: j.State.Definition.Tags,
			Protected: j.Protected, Attempt: j.Attempt,
		},
		Project:   policy.Project{ID: j.ProjectID, Path: j.State.Job.Variables["CI_PROJECT_PATH"]},
		User:      policy.User{ID: j.UserID, Login: j.UserLogin},
		Variables: map[string]string{}, Runners: allowed(j.State.Definition, runners),
	}
	for name, value := range j.State.Job.Variables {
		if len(c.Variables) == 0 || slices.Contains(c.Variables, name) {
			in.Variables[name] = value
		}
	}
	ids, _ := d.cfg.Surroundings.Groups(j.ProjectID)
	paths := policy.FromPayload(payload.Job{Variables: map[string]payload.Value{
		"CI_PROJECT_NAMESPACE": payload.Text(j.State.Job.Variables["CI_PROJECT_NAMESPACE"]),
	}}).Groups
	known := map[int64]string{}
	for i, id := range ids {
		g := policy.Group{ID: id}
		if len(paths) == len(ids) {
			g.Path = paths[i].Path
			known[id] = g.Path
		}
		in.Groups = append(in.Groups, g)
	}
	for _, id := range d.cfg.Surroundings.GroupsOfUser(j.UserID) {
		in.User.Groups = append(in.User.Groups, policy.Group{ID: id, Path: known[id]})
	}
	return in
}

// allowed returns the runners that the controllers before have not excluded by their ids.
func allowed(d chain.Definition, runners []policy.Runner) []policy.Runner {
	return slices.DeleteFunc(slices.Clone(runners), func(r policy.Runner) bool {
		return slices.Contains(d.RejectedRunners, r.ID) ||
			len(d.AcceptedRunners) > 0 && !slices.Contains(d.AcceptedRunners, r.ID)
	})
}

// chainRunners is never nil: the runners are known.
func chainRunners(runners []policy.Runner) []chain.Runner {
	out := make([]chain.Runner, len(runners))
	for i, r := range runners {
		out[i] = chain.Runner{ID: r.ID, Tags: r.Tags, RunUntagged: r.RunUntagged}
	}
	return out
}

// Expired returns the input of a job whose time has passed.
func Expired(j Job, at time.Time) (chain.Input, bool) {
	switch {
	case !j.Open() || at.Before(j.AnswerBy):
		return nil, false
	case !at.Before(j.Deadline):
		return chain.DeadlineReached{}, true
	default:
		return chain.TimedOut{Question: j.question()}, true
	}
}
