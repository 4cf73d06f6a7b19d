package execution

import (
	"context"

	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/trace"
	"lockstep.internal/services/runners/wire"
)

// Update implements [gitlab.Jobs]. An update of a job that has ended changes nothing: it returns the result.
func (j *Jobs) Update(
	ctx context.Context, ref gitlab.JobRef, update wire.UpdateRequest,
) (gitlab.UpdateResult, gitlab.JobState, error) {
	r, err := j.request(ctx, ref)
	if err != nil {
		return gitlab.Stored, gitlab.JobState{}, err
	}
	s, state, err := j.read(ctx, ref, r)
	if err != nil {
		return gitlab.Stored, state, err
	}
	if err := r.permits(s, jobtoken.ScopeUpdate); err != nil {
		return gitlab.Stored, state, err
	}
	if s.Job.State.Final() {
		return gitlab.Stored, state, nil
	}
	if update.State == wire.UpdateRunning {
		state, err = j.contacted(ctx, r, s, state)
		return gitlab.Stored, state, err
	}
	return j.finish(ctx, ref, r, update)
}

// finish ends the job as the runner reports it, or asks for the trace again.
func (j *Jobs) finish(
	ctx context.Context, ref gitlab.JobRef, r request, update wire.UpdateRequest,
) (gitlab.UpdateResult, gitlab.JobState, error) {
	var result gitlab.UpdateResult
	var state gitlab.JobState
	err := j.cfg.Store.UpdateJob(ctx, ref.ID, func(s Snapshot) (Decision, error) {
		result, state = gitlab.Stored, gitlab.JobState{}
		err := r.owns(s)
		if err != nil {
			return Decision{}, err
		}
		if state, err = j.state(s, r.now); err != nil {
			return Decision{}, err
		}
		if err := r.permits(s, jobtoken.ScopeUpdate); err != nil || s.Job.State.Final() {
			return Decision{}, err
		}
		decision, ended, err := finish(s, ref.Token, update, r)
		if err != nil {
			return Decision{}, err
		}
		if !ended {
			result = gitlab.ResendTrace
			return decision, nil
		}
		s.Job = decision.Change.Job
		state, err = j.state(s, r.now)
		return decision, err
	})
	if err != nil {
		return gitlab.Stored, state, void(err)
	}
	return result, state, nil
}

// finish decides how a job that a runner has ends. It returns false if the trace has to be sent again.
func finish(s Snapshot, token string, update wire.UpdateRequest, r request) (Decision, bool, error) {
	next, write, done := endTrace(s, token, update)
	decision := Decision{Contact: r.now, Trace: &next, Writes: []trace.Write{write}, Notify: true}
	if !done {
		return decision, false, nil
	}
	var result job.Result
	if update.State == wire.UpdateFailed {
		result.Reason = job.ReportedReason(update.FailureReason)
	}
	if update.ExitCode != nil {
		result.ExitCode = int(*update.ExitCode)
	}
	change, err := s.Job.Finish(result, r.now)
	decision.Change = &change
	return decision, err == nil, err
}

// endTrace ends the trace with the runner's report. A trace whose masked values are not known any more ends without
// what is held: the end of a job does not depend on it.
func endTrace(s Snapshot, token string, update wire.UpdateRequest) (trace.State, trace.Write, bool) {
	if s.Definition != nil {
		next, write, done, err := s.Trace.Finish(mask(*s.Definition, token), report(s.Trace, update))
		if err == nil {
			return next, write, done
		}
	}
	next, write := s.Trace.Abandon()
	return next, write, true
}

// mask hides the masked variables of a job and its token.
func mask(d job.Definition, token string) *trace.Mask {
	return trace.NewMask(append(d.MaskedValues(), token))
}

// report returns what the runner reports about the trace. An old runner reports no size.
func report(s trace.State, update wire.UpdateRequest) trace.Report {
	sum, size := update.Trace()
	out := trace.Report{Size: s.Size}
	if sum != nil {
		out.Checked, out.CRC = true, *sum
	}
	if size != nil {
		out.Size = *size
	}
	return out
}
