package chain

import (
	"slices"
	"time"
)

// Begin returns the admission of a job by controllers in the order of [Order]. A job without controllers is admitted.
func Begin(job Job, controllers []Controller, at time.Time) (State, Step) {
	s := State{Job: job, Definition: job.original(), Waiting: slices.Clone(controllers)}
	s.next(at)
	return s, Outstanding(s)
}

// Advance returns the state after an input. The step is [ActionWait] if the input changes nothing that the caller has
// to do. The records of the input are those that the state before did not have.
func Advance(s State, input Input, at time.Time) (State, Step) {
	if s.Outcome != "" {
		return s, Step{Action: ActionWait}
	}
	asked := Question{s.Waiting[0].ID, s.Attempt}
	s = s.clone()
	input.apply(&s, at)
	if s.Outcome == "" && asked == (Question{s.Waiting[0].ID, s.Attempt}) {
		return s, Step{Action: ActionWait}
	}
	return s, Outstanding(s)
}

// current reports whether a question belongs to the current round.
func (s *State) current(q Question) bool {
	return q.ControllerID == s.Waiting[0].ID && q.Attempt >= s.FirstAttempt && q.Attempt <= s.Attempt
}

func (in Answered) apply(s *State, at time.Time) {
	if !s.current(in.Question) || in.Answer.JobID != s.Job.ID {
		return
	}
	s.decide(in, at)
}

func (in Failed) apply(s *State, at time.Time) {
	if !s.current(in.Question) || in.Attempt != s.Attempt {
		return // a later attempt is on its way
	}
	c := &s.Waiting[0]
	if !in.Permanent && s.Attempt-s.FirstAttempt+1 < c.maxAttempts() {
		s.record(Record{Verdict: VerdictRetried, Reason: in.Message}, at)
		s.Attempt++
		s.AskedAt = at
		return
	}
	s.fail(VerdictFailed, in.Message, at)
}

func (in TimedOut) apply(s *State, at time.Time) {
	if s.current(in.Question) {
		s.fail(VerdictTimedOut, "the controller did not answer in time", at)
	}
}

func (in NotMatched) apply(s *State, at time.Time) {
	if s.current(in.Question) {
		s.record(Record{Verdict: VerdictSkipped, Reason: "the match conditions exclude the job"}, at)
		s.pass(at)
	}
}

func (in ControllerChanged) apply(s *State, at time.Time) {
	i := s.waiting(in.Controller.ID)
	if i < 0 || in.Controller.Revision <= s.Waiting[i].Revision {
		return
	}
	s.Waiting[i] = in.Controller
	if i > 0 {
		return
	}
	if in.Controller.Mode == Disabled {
		s.next(at)
		return
	}
	s.Attempt++
	s.FirstAttempt, s.AskedAt = s.Attempt, at
}

func (in ControllerDeleted) apply(s *State, at time.Time) {
	i := s.waiting(in.ControllerID)
	switch {
	case i == 0:
		s.record(Record{Verdict: VerdictSkipped, Reason: "the controller was deleted"}, at)
		s.pass(at)
	case i > 0:
		s.Waiting = slices.Delete(s.Waiting, i, i+1)
	}
}

func (in RunnersChanged) apply(s *State, _ time.Time) { s.Job.Runners = in.Runners }

func (in DeadlineReached) apply(s *State, at time.Time) {
	for s.Outcome == "" {
		s.fail(VerdictTimedOut, "the time for admission has passed", at)
		s.Attempt, s.FirstAttempt, s.AskedAt = 0, 0, time.Time{} // the next one is not asked
	}
}

func (in JobCanceled) apply(s *State, _ time.Time) { s.Outcome, s.Waiting = Canceled, nil }

func (s *State) waiting(id int64) int {
	return slices.IndexFunc(s.Waiting, func(c Controller) bool { return c.ID == id })
}

// record adds a record about the current controller.
func (s *State) record(r Record, at time.Time) {
	c := &s.Waiting[0]
	r.ControllerID, r.Revision, r.Name, r.Level, r.DryRun = c.ID, c.Revision, c.Name, c.Level, c.Mode == DryRun
	r.Attempt, r.AskedAt, r.At = s.Attempt, s.AskedAt, at
	s.Records = append(s.Records, r)
}

// decide records a valid answer and applies it.
func (s *State) decide(in Answered, at time.Time) {
	c, a := s.Waiting[0], in.Answer
	enforced := c.Mode != DryRun
	if !a.Accepted {
		s.record(Record{Verdict: VerdictRejected, Effective: enforced, Reason: a.Reason}, at)
		s.rejectUnlessDryRun(CauseDenied, Reason{c.Name, orDefault(a.Reason, "rejected without a reason")}, at)
		return
	}
	if !c.Mutating && a.Changes() {
		s.fail(VerdictFailed, "a validating controller may not change tags or runners", at)
		return
	}
	changed, diff, rejection, err := s.Definition.apply(a)
	switch {
	case err != nil:
		s.fail(VerdictFailed, err.Error(), at)
	case rejection != "":
		s.record(Record{Verdict: VerdictRejected, Effective: enforced, Diff: diff, Reason: rejection}, at)
		s.rejectUnlessDryRun(CauseNoRunner, Reason{c.Name, rejection}, at)
	default:
		s.record(Record{Verdict: VerdictAccepted, Effective: enforced, Diff: diff, Reason: a.Reason}, at)
		if enforced {
			s.Definition = changed
			if a.Reason != "" {
				s.Reasons = append(s.Reasons, Reason{c.Name, a.Reason})
			}
		}
		s.pass(at)
	}
}

func (s *State) rejectUnlessDryRun(cause Cause, reason Reason, at time.Time) {
	if s.Waiting[0].Mode == DryRun {
		s.pass(at)
		return
	}
	s.reject(cause, reason)
}

// fail records the failure of the current controller and applies its failure policy.
func (s *State) fail(verdict Verdict, message string, at time.Time) {
	c := s.Waiting[0]
	deny := c.Mode != DryRun && c.FailurePolicy != Ignore
	s.record(Record{Verdict: verdict, Effective: deny, Reason: message}, at)
	if deny {
		s.reject(CauseTimeout, Reason{c.Name, message})
		return
	}
	s.pass(at)
}

func (s *State) reject(cause Cause, reason Reason) {
	s.Outcome, s.Cause, s.Waiting = Rejected, cause, nil
	s.Reasons = append(s.Reasons, reason)
}

// pass continues after the current controller.
func (s *State) pass(at time.Time) {
	s.Waiting = s.Waiting[1:]
	s.Attempt, s.FirstAttempt = 0, 0
	s.next(at)
}

// next asks the first controller that is not disabled, or ends the chain.
func (s *State) next(at time.Time) {
	s.AskedAt = time.Time{}
	for len(s.Waiting) > 0 && s.Waiting[0].Mode == Disabled {
		s.Attempt, s.FirstAttempt = 0, 0
		s.record(Record{Verdict: VerdictSkipped, Reason: "the controller is disabled"}, at)
		s.Waiting = s.Waiting[1:]
	}
	if len(s.Waiting) > 0 {
		s.Attempt, s.FirstAttempt, s.AskedAt = 1, 1, at
		return
	}
	s.Waiting = nil
	if s.Job.Runners != nil && !s.Definition.equal(s.Job.original()) &&
		!slices.ContainsFunc(s.Job.Runners, s.Definition.Allows) {
		s.reject(CauseNoRunner, Reason{Text: "no existing runner matches the tags and runners that admission chose"})
		return
	}
	s.Outcome = Admitted
}

func orDefault(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}
