package nats

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
)

// activityWatchInterval is the time between two checks whether ACTIVITY is read.
const activityWatchInterval = 5 * time.Second

// ActivityWatch knows until when the activity of people in workspaces is processed, so that none is missed when idle
// workspaces are stopped. Each replica has one. Fields are required.
type ActivityWatch struct {
	JetStream jetstream.JetStream
	// Processed returns the last sequence of ACTIVITY that is processed, by any replica.
	Processed func(ctx context.Context) (uint64, error)
	Logger    *slog.Logger

	until atomic.Pointer[time.Time]
}

// ReadUntil returns the time until which all activity is processed, by the clock of the stream; zero if that is not
// known.
func (w *ActivityWatch) ReadUntil() time.Time {
	if until := w.until.Load(); until != nil {
		return *until
	}
	return time.Time{}
}

// Run checks the stream until ctx ends. It retries all failures.
func (w *ActivityWatch) Run(ctx context.Context) error {
	var failures retry.FailureLog
	for {
		err := w.Check(ctx)
		if err == nil {
			failures.Reset()
		} else if ctx.Err() == nil {
			w.Logger.LogAttrs(ctx, failures.Level(), "finding the end of ACTIVITY failed; retrying", logkey.Error(err))
		}
		if retry.Sleep(ctx, activityWatchInterval) != nil {
			return nil //nolint:nilerr // ctx has ended
		}
	}
}

// Check moves ReadUntil to the present end of the stream, if all messages are processed.
func (w *ActivityWatch) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, activityWatchInterval)
	defer cancel()
	stream, err := w.JetStream.Stream(ctx, topology.StreamActivity)
	if err != nil {
		return fmt.Errorf("reach %s: %w", topology.StreamActivity, err)
	}
	info := stream.CachedInfo()
	processed, err := w.Processed(ctx)
	if err != nil {
		return err
	}
	if until := info.TimeStamp; processed >= info.State.LastSeq && until.After(w.ReadUntil()) {
		w.until.Store(&until)
	}
	return nil
}
