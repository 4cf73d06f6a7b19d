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

// recheck is how often a watch asks again what its caller may see.
const recheck = 15 * time.Second

// watch is one caller's watch.
type watch struct {
	*rolloutService

	request *deploysv1.RolloutFilter
	ended   int
	send    func(*deploysv1.WatchRolloutsResponse) error
	// sent is the last sequence told of each rollout.
	sent map[string]int64
}

func (s *rolloutService) WatchRollouts(ctx context.Context, r *connect.Request[deploysv1.WatchRolloutsRequest], stream *connect.ServerStream[deploysv1.WatchRolloutsResponse]) error {
	if err := plausible(r.Msg.ProtoReflect(), ""); err != nil {
		return err
	}
	ended := int(r.Msg.GetEnded())
	if ended < 0 || ended > maxPageSize {
		return fault.New(errcode.InvalidArgument, "ended %d must be 0 to %d", ended, maxPageSize).With("field", "ended")
	}
	changed := s.changes.Subscribe()
	defer changed.Close()
	w := &watch{rolloutService: s, request: r.Msg.GetFilter(), ended: ended, send: stream.Send, sent: map[string]int64{}}
	if _, err := s.filter(ctx, w.request); err != nil {
		return err
	}
	// The headers go out now, so that the caller knows that the watch began even where nothing is
	// there yet.
	if err := stream.Send(nil); err != nil {
		return err //nolint:wrapcheck // the caller is gone
	}
	if err := w.sendAll(ctx, true); err != nil {
		return err
	}
	again := time.NewTicker(recheck)
	defer again.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return fault.From(ctx.Err())
		case <-service.Draining(ctx):
			return fault.New(errcode.Unavailable, "the server is stopping: watch again")
		case <-again.C:
			// A role that was given makes others visible.
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

// sendAll sends what runs, at first also the last ones that ended, and whatever was sent and has
// changed.
func (w *watch) sendAll(ctx context.Context, initial bool) error {
	filter, err := w.filter(ctx, w.request)
	if err != nil {
		return err
	}
	var all []history.Rollout
	if initial && w.ended > 0 {
		over := filter
		over.States = without(over.States, history.Running)
		if all, err = w.rollouts.List(ctx, over, postgres.RolloutPage{Size: w.ended}); err != nil {
			return err
		}
	}
	if len(filter.States) == 0 || slices.Contains(filter.States, history.Running) {
		running := filter
		running.States = []string{history.Running}
		if all, err = w.every(ctx, running, all); err != nil {
			return err
		}
	}
	if known := w.known(); len(known) > 0 {
		sent := filter
		sent.IDs = known
		if all, err = w.every(ctx, sent, all); err != nil {
			return err
		}
	}
	// Oldest first, as changes come.
	slices.SortStableFunc(all, func(a, b history.Rollout) int { return a.StartedAt.Compare(b.StartedAt) })
	for i := range all {
		if err := w.sendOne(&all[i], initial); err != nil {
			return err
		}
	}
	return nil
}

// every adds all rollouts that a filter selects.
func (w *watch) every(ctx context.Context, filter postgres.RolloutFilter, all []history.Rollout) ([]history.Rollout, error) {
	for page := (postgres.RolloutPage{Size: maxPageSize}); ; {
		found, err := w.rollouts.List(ctx, filter, page)
		if err != nil {
			return nil, err
		}
		if all = append(all, found...); len(found) < page.Size {
			return all, nil
		}
		last := &found[len(found)-1]
		page.After = &postgres.RolloutPlace{StartedAt: last.StartedAt, ID: last.ID}
	}
}

// known are the rollouts that run as far as the caller knows.
func (w *watch) known() []string {
	ids := make([]string, 0, len(w.sent))
	for id := range w.sent {
		ids = append(ids, id)
	}
	return ids
}

// without are all states but one; of none that are named, all there are.
func without(states []string, state string) []string {
	if len(states) == 0 {
		for _, name := range stateNames() {
			states = append(states, name)
		}
	}
	return slices.DeleteFunc(slices.Clone(states), func(s string) bool { return s == state })
}

// sendChanged sends those of the rollouts that the caller watches. One that it has been sent is
// sent once more when the filter no longer selects it, so that it is seen to leave.
func (w *watch) sendChanged(ctx context.Context, ids []string) error {
	filter, err := w.filter(ctx, w.request)
	if err != nil {
		return err
	}
	anyState := postgres.RolloutFilter{Agents: filter.Agents, IDs: w.ofSent(ids)}
	filter.IDs = ids
	for _, one := range []postgres.RolloutFilter{filter, anyState} {
		if len(one.IDs) == 0 {
			continue
		}
		found, err := w.every(ctx, one, nil)
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

func (w *watch) ofSent(ids []string) []string {
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
	if len(w.sent) > maxRemembered {
		// What has ended is heard of once more at most, when it has drained.
		for id := range w.sent {
			if id != r.ID {
				delete(w.sent, id)
				break
			}
		}
	}
	return w.send(&deploysv1.WatchRolloutsResponse{Rollout: rolloutMessage(r), Initial: initial})
}

// maxRemembered bounds what a watch remembers to have sent.
const maxRemembered = 10_000
