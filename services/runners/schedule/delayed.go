package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/logkey"
)

const (
	// checkInterval is the maximum time between two reads of the delays. It is shorter than every delay, so that one that
	// another replica stored is known before it ends.
	checkInterval = 5 * time.Second
	// maxDue is how many pipelines are read at once.
	maxDue = 100
)

// RunDelayed lets delayed jobs begin until ctx is done. It returns an error if the database fails; it may then be
// called again.
func (s *Scheduler) RunDelayed(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if err := s.BeginDue(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		next, err := s.Store.NextDelay(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read the next delay: %w", err)
		}
		timer.Reset(s.pause(next))
	}
}

func (s *Scheduler) pause(next time.Time) time.Duration {
	if next.IsZero() {
		return checkInterval
	}
	const shortest = 10 * time.Millisecond // the database rounds times
	return min(max(next.Sub(s.Now()), shortest), checkInterval)
}

// BeginDue lets all jobs begin whose delay has ended.
func (s *Scheduler) BeginDue(ctx context.Context) error {
	for {
		now := s.Now()
		due, err := s.Store.Due(ctx, now, maxDue)
		if err != nil {
			return fmt.Errorf("read delays that have ended: %w", err)
		}
		// One pipeline that fails does not keep the others from theirs.
		var failed []error
		for _, id := range due {
			if err := s.undelay(ctx, id, now); err != nil {
				s.Logger.WarnContext(ctx, "delayed jobs of a pipeline did not begin; they are tried again",
					slog.Int64(logkey.PipelineID, id), logkey.Error(err))
				failed = append(failed, err)
			}
		}
		if len(failed) > 0 {
			return errors.Join(failed...)
		}
		if len(due) < maxDue {
			return nil
		}
	}
}

// undelay removes the delays of a pipeline that have ended, unless another replica has done so.
func (s *Scheduler) undelay(ctx context.Context, id int64, now time.Time) error {
	return s.Store.InTx(ctx, func(tx pgx.Tx) error {
		if err := s.Store.LockOrganizationOf(ctx, tx, id, 0); err != nil {
			return fmt.Errorf("begin delayed jobs of pipeline %d: %w", id, err)
		}
		if p, err := s.Store.Lock(ctx, tx, id); err != nil || p == nil {
			return err
		}
		ended, err := s.Store.Undelay(ctx, tx, id, now)
		if err != nil || ended == 0 {
			return err
		}
		g, err := s.load(ctx, tx, id)
		if err != nil {
			return err
		}
		return g.advance(ctx)
	})
}
