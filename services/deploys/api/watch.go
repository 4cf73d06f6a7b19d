package api

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/service"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/services/deploys/history"
	"lockstep.internal/services/deploys/postgres"
)

// recheckInterval is the time between two checks of the agents that the caller may read.
const recheckInterval = 15 * time.Second

// watch is the state of one WatchRollouts call.
type watch struct {
	*rolloutService

	request *deploysv1.RolloutFilter
	ended   int
	scaling bool
	send    func(*deploysv1.WatchRolloutsResponse) error
	// sent holds the last sent sequence of each rollout.
	sent map[string]int64
}

func (s *rolloutService) WatchRollouts(
	ctx context.Context, r *connect.Request[deploysv1.WatchRolloutsRequest],
	stream *connect.ServerStream[deploysv1.WatchRolloutsResponse],
) error {
	if err := limits().Check(r.Msg.ProtoReflect(), ""); err != nil {
		return err
	}
	ended := int(r.Msg.GetEnded())
	if ended < 0 || ended > maxPageSize {
		return fault.New(errcode.InvalidArgument, "ended %d must be 0 to %d", ended, maxPageSize).With("field", "ended")
	}
	changed := s.changes.Subscribe()
	defer changed.Close()
	w := &watch{
		rolloutService: s, request: r.Msg.GetFilter(), ended: ended, scaling: r.Msg.GetScaling(), send: stream.Send,
		sent: map[string]int64{},
	}
	if _, err := s.filter(ctx, w.request); err != nil {
		return err
	}
	// Send the headers, so that the caller knows that the watch has started.
	if err := stream.Send(nil); err != nil {
		return err //nolint:wrapcheck // The caller disconnected.
	}
	if err := w.sendAll(ctx, true); err != nil {
		return err
	}
	recheck := time.NewTicker(recheckInterval)
	defer recheck.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return fault.From(ctx.Err())
		case <-service.Draining(ctx):
			return fault.New(errcode.Unavailable, "the server is stopping: watch again")
		case <-recheck.C:
			// The caller may have got a role in another project.
			err = w.sendAll(ctx, false)
		case <-changed.Changed():
			if ids, all := changed.Take(); all {
				err = w.sendAll(ctx, false)
			} else {
				err = w.sendChanged(ctx, ids)
			}
		}
		if err != nil {
			return err
		}
	}
}

// sendAll sends all running rollouts, and those sent before that have changed. The initial call also sends the last
// ended ones.
func (w *watch) sendAll(ctx context.Context, initial bool) error {
	filter, err := w.filter(ctx, w.request)
	if err != nil {
		return err
	}
	var all []history.Rollout
	if initial && w.ended > 0 {
		ended := filter
		ended.States = without(ended.States, history.Running)
		if all, err = w.rollouts.List(ctx, ended, postgres.RolloutPage{Size: w.ended}); err != nil {
			return err
		}
	}
	if len(filter.States) == 0 || slices.Contains(filter.States, history.Running) {
		running := filter
		running.States = []string{history.Running}
		if all, err = w.appendAll(ctx, running, all); err != nil {
			return err
		}
	}
	if known := w.known(); len(known) > 0 {
		sent := filter
		sent.IDs = known
		if all, err = w.appendAll(ctx, sent, all); err != nil {
			return err
		}
	}
	// Oldest first, like changes.
	slices.SortStableFunc(all, func(a, b history.Rollout) int { return a.StartedAt.Compare(b.StartedAt) })
	for i := range all {
		if err := w.sendOne(&all[i], initial); err != nil {
			return err
		}
	}
	return nil
}

// appendAll appends all rollouts that a filter selects.
func (w *watch) appendAll(
	ctx context.Context, filter postgres.RolloutFilter, all []history.Rollout,
) ([]history.Rollout, error) {
	for page := (postgres.RolloutPage{Size: maxPageSize}); ; {
		found, err := w.rollouts.List(ctx, filter, page)
		if err != nil {
			return nil, err
		}
		if all = append(all, found...); len(found) < page.Size {
			return all, nil
		}
		last := &found[len(found)-1]
		page.After = &postgres.RolloutPosition{StartedAt: last.StartedAt, ID: last.ID}
	}
}

// known returns the ids of the sent rollouts.
func (w *watch) known() []string {
	ids := make([]string, 0, len(w.sent))
	for id := range w.sent {
		ids = append(ids, id)
	}
	return ids
}

// without returns the states except one. An empty list means all states.
func without(states []string, state string) []string {
	if len(states) == 0 {
		for _, name := range stateNames() {
			states = append(states, name)
		}
	}
	return slices.DeleteFunc(slices.Clone(states), func(s string) bool { return s == state })
}

// sendChanged sends the changed rollouts that the filter selects. It also sends a rollout that was sent before and that
// the filter no longer selects, so that the caller receives the change.
func (w *watch) sendChanged(ctx context.Context, ids []string) error {
	filter, err := w.filter(ctx, w.request)
	if err != nil {
		return err
	}
	if err := w.sendScalings(ctx, filter, ids); err != nil {
		return err
	}
	sentBefore := postgres.RolloutFilter{Agents: filter.Agents, IDs: w.sentBefore(ids)}
	filter.IDs = ids
	for _, one := range []postgres.RolloutFilter{filter, sentBefore} {
		if len(one.IDs) == 0 {
			continue
		}
		found, err := w.appendAll(ctx, one, nil)
		if err != nil {
			return err
		}
		for i := range slices.Backward(found) {
			if err := w.sendOne(&found[i], false); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendScalings sends the changes of the number of pods among the facts with the ids.
func (w *watch) sendScalings(ctx context.Context, filter postgres.RolloutFilter, ids []string) error {
	if !w.scaling {
		return nil
	}
	facts, err := w.rollouts.Scalings(ctx, ids)
	if err != nil {
		return err
	}
	for i := range facts {
		if filter.SelectsScaling(&facts[i]) {
			if err := w.send(&deploysv1.WatchRolloutsResponse{Scaling: scalingMessage(&facts[i])}); err != nil {
				return err
			}
		}
	}
	return nil
}

// sentBefore returns the ids of rollouts that were sent before.
func (w *watch) sentBefore(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		_, sent := w.sent[id]
		return !sent
	})
}

func (w *watch) sendOne(r *history.Rollout, initial bool) error {
	if last, known := w.sent[r.ID]; known && last == r.LastSequence {
		return nil
	}
	w.sent[r.ID] = r.LastSequence
	if len(w.sent) > maxSent {
		// Drop an arbitrary other rollout. At worst, it is sent once more.
		for id := range w.sent {
			if id != r.ID {
				delete(w.sent, id)
				break
			}
		}
	}
	return w.send(&deploysv1.WatchRolloutsResponse{Rollout: rolloutMessage(r), Initial: initial})
}

// maxSent is the maximum number of entries of watch.sent.
const maxSent = 10_000
