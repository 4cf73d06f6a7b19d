package execution

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/job"
)

const (
	defaultMaintenanceInterval = 15 * time.Second
	// overdueBatch is how many ids of jobs are read at once.
	overdueBatch = 100
)

// Maintenance ends and releases overdue jobs, on one replica at a time. All fields are required, unless they have a
// default.
type Maintenance struct {
	Pool   *pgxpool.Pool
	Store  Store
	Rules  Rules
	Logger *slog.Logger
	Now    func() time.Time
	// Interval between two searches. Defaults to 15 s.
	Interval time.Duration
}

// Run searches for overdue jobs until ctx is done or the database fails. It calls ready once this replica does so, or
// another one.
func (m Maintenance) Run(ctx context.Context, ready func()) error {
	return postgres.ExclusiveWork{
		Lock: "execution", Interval: cmp.Or(m.Interval, defaultMaintenanceInterval), Ready: ready,
		Do: func(ctx context.Context, _ *pgx.Conn) error { return m.Once(ctx) },
	}.Run(ctx, m.Pool)
}

// Once ends and releases the jobs that are overdue now. A job for which this fails is logged, and holds up no other.
func (m Maintenance) Once(ctx context.Context) error {
	for after := int64(0); ; {
		ids, err := m.Store.Overdue(ctx, after, m.Now(), m.Rules, overdueBatch)
		if err != nil {
			return fmt.Errorf("find overdue jobs: %w", err)
		}
		for _, id := range ids {
			if err := m.end(ctx, id); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				m.Logger.ErrorContext(ctx, "ending an overdue job failed; trying again",
					slog.Int64(logkey.JobID, id), logkey.Error(err))
			}
			after = id
		}
		if len(ids) < overdueBatch {
			return nil
		}
	}
}

func (m Maintenance) end(ctx context.Context, id int64) error {
	var change job.Change
	var due bool
	err := m.Store.UpdateJob(ctx, id, func(s Snapshot) (Decision, error) {
		if change, due = Overdue(s, m.Now(), m.Rules); !due {
			return Decision{}, nil
		}
		d := Decision{Change: &change}
		if change.Job.State.Final() {
			d.abandonTrace(s)
		}
		return d, nil
	})
	switch {
	case errors.Is(err, ErrVoid), fault.Is(err, errcode.NotFound):
		return nil // the runner has reported at the last moment, or the job was deleted
	case err != nil:
		return err
	case due:
		m.Logger.WarnContext(ctx, "the runner of a job does not report", slog.Int64(logkey.JobID, id),
			slog.String(logkey.EventType, string(change.Event)), slog.String(logkey.Reason, string(change.Job.Reason)))
	}
	return nil
}
