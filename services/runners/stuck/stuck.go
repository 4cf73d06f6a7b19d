package stuck

import (
	"cmp"
	"context"
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
	"lockstep.internal/services/runners/runner"
)

// Rules are how long a job waits.
type Rules struct {
	// Stuck is the time after which a job fails, whoever could take it.
	Stuck time.Duration
	// Unmatched is the time after which a job fails that no runner could ever take.
	Unmatched time.Duration
}

// DefaultRules returns a day and an hour.
func DefaultRules() Rules { return Rules{Stuck: 24 * time.Hour, Unmatched: time.Hour} }

// Verdict returns why a pending job fails now, and false if it goes on waiting. matched tells whether some runner could
// take it, were it free, online and not paused.
func Verdict(j job.Job, matched bool, now time.Time, rules Rules) (job.FailureReason, bool) {
	waited := now.Sub(j.PendingSince)
	switch {
	case j.State != job.Pending:
		return "", false
	case waited >= rules.Stuck:
		return job.StuckOrTimeout, true
	case waited >= rules.Unmatched && !matched:
		return job.NoMatchingRunner, true
	default:
		return "", false
	}
}

// Matched reports whether a runner could take the job at some time.
func Matched(j job.Job, place runner.Place, runners []*runner.Runner, now time.Time) bool {
	for _, r := range runners {
		matches := true
		for _, reason := range r.Explain(&j, place, now) {
			matches = matches && reason.Rule.Passing()
		}
		if matches {
			return true
		}
	}
	return false
}

// Store reads and ends jobs.
type Store interface {
	// PendingSince returns jobs that wait since a time at the latest, with ids above an id, by id.
	PendingSince(ctx context.Context, since time.Time, after int64, limit int) ([]job.Job, error)
	// Fail ends a job, and what follows from it, if it has not changed.
	Fail(ctx context.Context, j job.Job, reason job.FailureReason) error
}

// Watch ends jobs that wait for too long. All fields are required, unless they have a default.
type Watch struct {
	Pool  *pgxpool.Pool
	Store Store
	// Runners returns all runners of the cell.
	Runners func() []*runner.Runner
	// Place returns the position of a project, and false if it is not known.
	Place  func(projectID int64) (runner.Place, bool)
	Rules  Rules
	Logger *slog.Logger
	Now    func() time.Time
	// Interval between two searches. Defaults to a minute.
	Interval time.Duration
}

const (
	defaultInterval = time.Minute
	pageSize        = 500
)

// Run searches for jobs until ctx is done or the database fails. It calls ready once this replica does so, or another.
func (w Watch) Run(ctx context.Context, ready func()) error {
	return postgres.ExclusiveWork{
		Lock: "stuck", Interval: cmp.Or(w.Interval, defaultInterval), Ready: ready,
		Do: func(ctx context.Context, _ *pgx.Conn) error { return w.Once(ctx) },
	}.Run(ctx, w.Pool)
}

// Once ends the jobs that have waited for too long now.
func (w Watch) Once(ctx context.Context) error {
	now := w.Now()
	since := now.Add(-min(w.Rules.Stuck, w.Rules.Unmatched))
	for after := int64(0); ; {
		jobs, err := w.Store.PendingSince(ctx, since, after, pageSize)
		if err != nil {
			return fmt.Errorf("find jobs that wait for too long: %w", err)
		}
		for _, j := range jobs {
			after = j.ID
			place, known := w.Place(j.ProjectID)
			// Without the directory nobody knows which runners there could be.
			matched := !known || Matched(j, place, w.Runners(), now)
			reason, due := Verdict(j, matched, now, w.Rules)
			if !due {
				continue
			}
			err := w.Store.Fail(ctx, j, reason)
			if fault.Is(err, errcode.OrganizationMoving) {
				continue // the job waits in another cell from now on, or here after the move was canceled
			}
			if err != nil {
				return fmt.Errorf("end job %d, which waits for too long: %w", j.ID, err)
			}
			w.Logger.WarnContext(ctx, "a job waited for a runner for too long", slog.Int64(logkey.JobID, j.ID),
				slog.String(logkey.Reason, string(reason)))
		}
		if len(jobs) < pageSize {
			return nil
		}
	}
}
