package deliver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/postgres"
)

// Input is what happened to a job, and what is stored with it.
type Input struct {
	JobID      int64
	Input      chain.Input
	RetryAfter time.Time
	At         time.Time
	// MustChange makes it [ErrUnchanged] if the job does not change.
	MustChange bool
	// With is stored in the same transaction, also if the job does not change.
	With func(ctx context.Context, tx pgx.Tx) error
}

// ErrUnchanged reports an input that does not concern the job any more.
var ErrUnchanged = errors.New("the job no longer waits for this answer")

// Apply applies an input to a job. It tries again when others change the job meanwhile.
func Apply(ctx context.Context, jobs postgres.Jobs, decider *decide.Decider, in Input) error {
	var err error
	for range conflicts {
		if err = applyOnce(ctx, jobs, decider, in); !errors.Is(err, postgres.ErrConflict) {
			return err
		}
	}
	return err
}

func applyOnce(ctx context.Context, jobs postgres.Jobs, decider *decide.Decider, in Input) error {
	job, controllers, found, err := jobs.Load(ctx, in.JobID)
	if err != nil {
		return err
	}
	if found && job.Open() {
		after, ask := decider.Advance(ctx, job, in.Input, controllers, in.RetryAfter, in.At)
		if !decide.Same(job, after) {
			return jobs.Save(ctx, job, after, ask, in.With)
		}
	}
	switch {
	case in.MustChange:
		return ErrUnchanged
	case in.With == nil:
		return nil
	}
	err = libpostgres.InTx(ctx, jobs.Pool, func(tx pgx.Tx) error { return in.With(ctx, tx) })
	if err != nil {
		return fmt.Errorf("job %d: %w", in.JobID, err)
	}
	return nil
}
