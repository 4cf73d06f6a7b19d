package execution

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/wire"
)

// ErrVoid is wrapped when the claim of a request is gone.
var ErrVoid = errors.New("the claim of the job is void")

// request is a request with a token whose signature is right.
type request struct {
	claims jobtoken.Claims
	hash   [sha256.Size]byte
	now    time.Time
}

// owns checks that the token is that of the last claim of the job. Nothing of the job is shown before.
func (r request) owns(s Snapshot) error {
	if s.Claim == nil || s.Claim.Number != s.Job.Claims || r.claims.JobID != s.Job.ID ||
		subtle.ConstantTimeCompare(r.hash[:], s.Claim.TokenHash) != 1 {
		return notValid()
	}
	if !s.Job.State.Active() && !s.Job.State.Final() {
		return notValid() // the claim was released
	}
	return nil
}

// authorize checks that the request may do something with a job that a runner has. It is called after owns.
func (r request) authorize(s Snapshot, scope jobtoken.Scope) error {
	if err := r.permits(s, scope); err != nil {
		return err
	}
	if s.Job.State.Final() {
		return fault.New(errcode.PermissionDenied, "job %d has ended: it is %s", s.Job.ID, s.Job.State)
	}
	return nil
}

// permits checks the validity and the scope of the token.
func (r request) permits(s Snapshot, scope jobtoken.Scope) error {
	switch {
	case !r.now.Before(s.Claim.ExpiresAt):
		return fault.New(errcode.PermissionDenied, "the token of job %d has expired", s.Job.ID)
	case !r.claims.Permits(scope):
		return fault.New(errcode.PermissionDenied, "the token of job %d does not have the scope %s", s.Job.ID, scope)
	default:
		return nil
	}
}

// contact returns the time of the contact if it has to be stored: the first one, and one in each interval.
func (r request) contact(s Snapshot, interval time.Duration) time.Time {
	if s.Claim.ConfirmedAt.IsZero() || r.now.Sub(s.Claim.ContactedAt) >= interval {
		return r.now
	}
	return time.Time{}
}

func notValid() error {
	return fault.New(errcode.PermissionDenied, "the token is not that of the job, or the job was given to another runner")
}

// void is the error of a request whose claim was released in the meantime.
func void(err error) error {
	if errors.Is(err, ErrVoid) {
		return notValid()
	}
	return err
}

// status returns a state as runners know it.
func status(state job.State) (wire.JobStatus, error) {
	switch state {
	case job.Running:
		return wire.StatusRunning, nil
	case job.Canceling:
		return wire.StatusCanceling, nil
	case job.Success:
		return wire.StatusSuccess, nil
	case job.Failed:
		return wire.StatusFailed, nil
	case job.Canceled, job.Skipped:
		return wire.StatusCanceled, nil
	case job.Created, job.Preparing, job.Pending:
	}
	return "", fmt.Errorf("no runner has a job that is %s", state)
}
