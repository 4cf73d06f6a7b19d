package connectapi

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/service"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
)

// recheck is how often a watch asks again what its caller may see: who loses a role, or its token, loses the stream.
const recheck = 15 * time.Second

// version tells two states of a workspace apart.
type version struct{ desired, actual, applied int64 }

func versionOf(w domain.Workspace) version {
	return version{w.DesiredRevision, w.ActualStateRevision, w.AppliedRevision}
}

// watcher is one caller's watch.
type watcher struct {
	service *workspaceService
	request *statev1.WorkspaceFilter
	filter  postgres.WorkspaceFilter
	send    func(*statev1.WatchWorkspacesResponse) error
	sent    map[uuid.UUID]version
}

func (s *workspaceService) WatchWorkspaces(ctx context.Context, r *connect.Request[statev1.WatchWorkspacesRequest], stream *connect.ServerStream[statev1.WatchWorkspacesResponse]) error {
	filter, err := s.filter(ctx, r.Msg.GetFilter())
	if err != nil {
		return err
	}
	changed := s.changes.Subscribe()
	defer changed.Close()
	w := &watcher{service: s, request: r.Msg.GetFilter(), filter: filter, send: stream.Send, sent: map[uuid.UUID]version{}}
	// The headers go out now, so that the caller knows that the watch began even where nothing is there yet.
	if err := stream.Send(nil); err != nil {
		return err //nolint:wrapcheck // the caller is gone
	}
	if err := w.sendAll(ctx, true); err != nil {
		return err
	}
	again := time.NewTicker(recheck)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return fault.From(ctx.Err())
		case <-service.Draining(ctx):
			return fault.New(errcode.Unavailable, "the server is stopping: watch again")
		case <-again.C:
			err = w.refresh(ctx, r.Header().Get("Authorization"))
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

// refresh asks again whether the caller may watch.
func (w *watcher) refresh(ctx context.Context, authorization string) error {
	ctx, err := w.service.callers.authenticate(ctx, map[string][]string{"Authorization": {authorization}})
	if err != nil {
		return err
	}
	w.filter, err = w.service.filter(ctx, w.request)
	return err
}

// sendAll sends every workspace that the caller has not seen as it is.
func (w *watcher) sendAll(ctx context.Context, initial bool) error {
	page := postgres.WorkspacePage{Size: maxPageSize}
	for {
		found, err := w.service.workspaces.List(ctx, w.service.pool, w.filter, page)
		if err != nil {
			return err
		}
		shown, err := w.service.shown(ctx, found...)
		if err != nil {
			return err
		}
		// Oldest first within a page, as changes come.
		for i, one := range slices.Backward(found) {
			if err := w.sendOne(one, shown[i], initial); err != nil {
				return err
			}
		}
		if len(found) < page.Size {
			return nil
		}
		page.After = found[len(found)-1].ID
	}
}

// sendChanged sends those of the workspaces that the caller watches. One that it has been sent is sent once more when the filter no longer selects it, so that
// it is seen to leave.
func (w *watcher) sendChanged(ctx context.Context, ids []uuid.UUID) error {
	for chunk := range slices.Chunk(ids, maxPageSize) {
		references := make([]postgres.WorkspaceReference, len(chunk))
		for i, id := range chunk {
			references[i] = postgres.WorkspaceReference{ID: id}
		}
		found, err := w.service.workspaces.List(ctx, w.service.pool, postgres.WorkspaceFilter{ProjectIDs: w.filter.ProjectIDs, References: references}, postgres.WorkspacePage{Size: len(chunk)})
		if err != nil {
			return err
		}
		shown, err := w.service.shown(ctx, found...)
		if err != nil {
			return err
		}
		for i, one := range slices.Backward(found) {
			_, known := w.sent[one.ID]
			if !known && !selects(w.filter, one) {
				continue
			}
			if err := w.sendOne(one, shown[i], false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *watcher) sendOne(one domain.Workspace, shown *statev1.Workspace, initial bool) error {
	if last, known := w.sent[one.ID]; known && last == versionOf(one) {
		return nil
	}
	w.sent[one.ID] = versionOf(one)
	if one.ActualState == actualstate.Terminated {
		defer delete(w.sent, one.ID)
	}
	return w.send(&statev1.WatchWorkspacesResponse{Workspace: shown, Initial: initial})
}

// selects says whether the filter selects the workspace, as the store's List does.
func selects(f postgres.WorkspaceFilter, w domain.Workspace) bool {
	named := len(f.References) == 0 || slices.ContainsFunc(f.References, func(r postgres.WorkspaceReference) bool {
		return r.ID == w.ID || r.ID == uuid.Nil && r.Name == w.Name
	})
	terminated := f.IncludeTerminated || len(f.References) > 0 || slices.Contains(f.ActualStates, actualstate.Terminated)
	return named &&
		(f.ProjectIDs == nil || slices.Contains(f.ProjectIDs, w.ProjectID)) &&
		(f.ProjectID == 0 || f.ProjectID == w.ProjectID) &&
		(f.AgentID == 0 || f.AgentID == w.AgentID) &&
		(f.UserID == 0 || f.UserID == w.UserID) &&
		(len(f.ActualStates) == 0 || slices.Contains(f.ActualStates, w.ActualState)) &&
		(len(f.DesiredStates) == 0 || slices.Contains(f.DesiredStates, w.DesiredState)) &&
		(terminated || w.ActualState != actualstate.Terminated)
}
