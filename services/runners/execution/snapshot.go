package execution

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/trace"
)

// Claim is the last claim of a job. Times are UTC; the zero time means never.
type Claim struct {
	// Number equals the claims of the job while the claim is valid.
	Number    int
	TokenHash []byte
	ExpiresAt time.Time
	ClaimedAt time.Time
	// ConfirmedAt and ContactedAt are when the runner first and last reported.
	ConfirmedAt, ContactedAt time.Time
}

// lastContact returns when the runner was last known to have the job.
func (c Claim) lastContact() time.Time {
	if c.ContactedAt.After(c.ClaimedAt) {
		return c.ContactedAt
	}
	return c.ClaimedAt
}

// Snapshot is what is stored of a job that a runner has or had.
type Snapshot struct {
	Job job.Job
	// Claim is nil if none is stored.
	Claim *Claim
	// Definition is nil if it is missing or cannot be read, and if it was not asked for.
	Definition *job.Definition
	Trace      trace.State
	// WatchedUntil is until when somebody reads the trace; zero for nobody.
	WatchedUntil time.Time
	// Artifacts of the job, if they were asked for.
	Artifacts []Artifact
}

// Decision is what is stored in the transaction of a snapshot.
type Decision struct {
	// Contact, if not zero, is the time of the runner's contact. It confirms the claim of the snapshot. If that claim is
	// gone, nothing is stored and the error wraps [ErrVoid].
	Contact time.Time
	// Trace and Writes replace the trace of the snapshot, if Trace is not nil.
	Trace  *trace.State
	Writes []trace.Write
	// Notify wakes the readers of the trace. A notification of each append would slow down all commits of the database.
	Notify bool
	// Change of the job; nil for none. A release removes the claim, unless it was confirmed: then nothing is stored and
	// the error wraps [ErrVoid].
	Change *job.Change
	// Artifact, if not nil, is stored instead of the one of the same type, whose object is then unused. If the object is
	// not among the unused ones any more, nothing is stored and the error wraps [ErrVoid].
	Artifact *Artifact
}

// Decide returns the decision for a snapshot. After an error nothing is stored.
type Decide func(Snapshot) (Decision, error)

// Store stores jobs while runners execute them. A job that does not exist is the fault not_found.
type Store interface {
	// Read returns a job without its definition and its artifacts, with one query.
	Read(ctx context.Context, jobID int64) (Snapshot, error)
	// Contact records a contact of the runner. It returns false if the claim is gone.
	Contact(ctx context.Context, jobID int64, claim int, at time.Time) (bool, error)
	// UpdateTrace locks the trace. The decision does not change the job or its artifacts.
	UpdateTrace(ctx context.Context, jobID int64, decide Decide) error
	// UpdateJob locks the pipeline, the job and the trace. If the decision ends the job, the followers are called.
	UpdateJob(ctx context.Context, jobID int64, decide Decide) error
	// Overdue returns ids of jobs above an id, for which [Overdue] may return a change, in their order.
	Overdue(ctx context.Context, after int64, now time.Time, rules Rules, limit int) ([]int64, error)
}

// Followers are what follows from the end of a job.
type Followers interface {
	// Ended advances the pipeline of a job that has just ended, in the same transaction. The row of the pipeline is
	// locked, and the change is stored.
	Ended(ctx context.Context, tx pgx.Tx, change job.Change) error
}
