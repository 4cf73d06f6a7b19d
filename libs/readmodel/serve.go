package readmodel

import (
	"context"
	"errors"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/service"
	"lockstep.internal/schemas/gen/errcode"
)

// progressInterval is the minimum time between two reports to a caller.
const progressInterval = 100 * time.Millisecond

// Serve runs a rebuild for a caller of an API. It reports the progress at most every 100 ms, and the end of each
// stream. The rebuild is canceled when report fails or when the server begins to drain.
func Serve(
	ctx context.Context, now func() time.Time, report func(Progress) error,
	rebuild func(ctx context.Context, progress func(Progress) error) (Outcome, error),
) (Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-service.Draining(ctx):
			cancel(fault.New(errcode.Unavailable, "the server is stopping and changed nothing: rebuild again"))
		case <-ctx.Done():
		}
	}()
	var last time.Time
	out, err := rebuild(ctx, func(p Progress) error {
		at := now()
		if p.Sequence < p.Last && at.Sub(last) < progressInterval {
			return nil
		}
		last = at
		return report(p)
	})
	if err != nil {
		return Outcome{}, errors.Join(context.Cause(ctx), err)
	}
	return out, nil
}
