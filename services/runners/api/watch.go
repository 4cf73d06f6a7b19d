package api

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/service"
	"lockstep.internal/schemas/gen/errcode"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
)

const (
	// recheckInterval is the time between two reads without a change: the caller may have lost the role, and artifacts may
	// have expired.
	recheckInterval = 15 * time.Second
	// watchInterval is the minimum time between two reads, so that a pipeline with many short jobs costs few of them.
	watchInterval = 100 * time.Millisecond
)

// watch is the state of one WatchPipeline call.
type watch struct {
	*pipelineService

	id   int64
	send func(*runnersv1.WatchPipelineResponse) error
	// jobs are those that were sent last. Notifications name jobs, not their pipelines.
	jobs map[int64]bool
	sent *runnersv1.Pipeline
}

func (s *pipelineService) WatchPipeline(
	ctx context.Context, r *connect.Request[runnersv1.WatchPipelineRequest],
	stream *connect.ServerStream[runnersv1.WatchPipelineResponse],
) error {
	end, err := s.streams.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	pipelines, jobs := s.pipelineChanges.Subscribe(), s.jobChanges.Subscribe()
	defer pipelines.Close()
	defer jobs.Close()
	w := &watch{pipelineService: s, id: r.Msg.GetId(), send: stream.Send}
	if done, err := w.update(ctx); done || err != nil {
		return err
	}
	recheck := time.NewTicker(recheckInterval)
	defer recheck.Stop()
	for {
		changed := false
		for !changed {
			select {
			case <-ctx.Done():
				return fault.From(ctx.Err())
			case <-service.Draining(ctx):
				return fault.New(errcode.Unavailable, "the server is stopping: watch again")
			case <-recheck.C:
				changed = true
			case <-pipelines.Changed():
				ids, all := pipelines.Take()
				changed = all || slices.ContainsFunc(ids, func(id int64) bool { return id == w.id })
			case <-jobs.Changed():
				ids, all := jobs.Take()
				changed = all || slices.ContainsFunc(ids, func(id int64) bool { return w.jobs[id] })
			}
		}
		if done, err := w.update(ctx); done || err != nil {
			return err
		}
		select {
		case <-time.After(watchInterval):
		case <-ctx.Done():
			return fault.From(ctx.Err())
		}
	}
}

// update sends the pipeline if it differs from what was sent last. It returns true when the pipeline has ended.
func (w *watch) update(ctx context.Context) (done bool, err error) {
	attempts, message, err := w.load(ctx, w.id)
	if err != nil {
		return false, err
	}
	w.jobs = make(map[int64]bool, len(attempts))
	for i := range attempts {
		w.jobs[attempts[i].Job.ID] = true
	}
	done = message.GetFinishedAt() != nil
	if proto.Equal(message, w.sent) {
		return done, nil
	}
	w.sent = message
	return done, w.send(&runnersv1.WatchPipelineResponse{Pipeline: message})
}
