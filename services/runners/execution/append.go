package execution

import (
	"context"
	"errors"
	"fmt"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/trace"
)

// AppendTrace implements [gitlab.Jobs]. Concurrent appends of one job happen one after the other. A trace that exceeds
// its limit ends with a note; its job continues.
func (j *Jobs) AppendTrace(
	ctx context.Context, ref gitlab.JobRef, offset int64, part []byte,
) (int64, gitlab.JobState, error) {
	r, err := j.request(ctx, ref)
	if err != nil {
		return 0, gitlab.JobState{}, err
	}
	var state gitlab.JobState
	var size int64
	var tooLarge error
	err = j.cfg.Store.UpdateTrace(ctx, ref.ID, func(s Snapshot) (Decision, error) {
		state, tooLarge = gitlab.JobState{}, nil
		err := r.owns(s)
		if err != nil {
			return Decision{}, err
		}
		if state, err = j.state(s, r.now); err != nil {
			return Decision{}, err
		}
		if err := r.authorize(s, jobtoken.ScopeTrace); err != nil {
			return Decision{}, err
		}
		if s.Definition == nil {
			return Decision{}, fault.New(errcode.Internal,
				"the definition of job %d cannot be read, so its trace cannot be masked", ref.ID)
		}
		next, writes, err := j.append(s, ref.Token, offset, part)
		if errors.Is(err, trace.ErrTooLarge) && next.Full && !s.Trace.Full {
			tooLarge, err = err, nil // the note is stored
		}
		size = next.Size
		return Decision{
			Contact: r.contact(s, contactInterval), Trace: &next, Writes: writes, Notify: s.WatchedUntil.After(r.now),
		}, err
	})
	if err := errors.Join(void(err), tooLarge); err != nil {
		return 0, state, err
	}
	return size, state, nil
}

// append returns the trace with the part. With [trace.ErrTooLarge], the trace may have changed.
func (j *Jobs) append(s Snapshot, token string, offset int64, part []byte) (trace.State, []trace.Write, error) {
	m := mask(*s.Definition, token)
	next, write, err := s.Trace.Append(m, offset, part, j.cfg.TraceLimit)
	if !errors.Is(err, trace.ErrTooLarge) {
		return next, []trace.Write{write}, err
	}
	note := fmt.Sprintf("\nThe trace exceeds its limit of %d bytes: the rest of it is not stored.\n", j.cfg.TraceLimit)
	next, writes, lastErr := s.Trace.AppendLast(m, offset, part, j.cfg.TraceLimit, note)
	if lastErr != nil {
		return s.Trace, nil, lastErr
	}
	return next, writes, err
}
