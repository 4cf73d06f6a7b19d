package api

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
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/workspace"
)

// authorizeInterval is the time between two authorizations of a watch, which find new projects. A role that was taken
// away ends the watch at once.
const authorizeInterval = 15 * time.Second

// version identifies a state of a workspace.
type version struct {
	desired, actual, applied int64
	// message changes without a revision.
	message    string
	staleSince time.Time
}

func versionOf(w workspace.Workspace, message *statev1.Workspace) version {
	return version{
		w.DesiredRevision, w.ActualStateRevision, w.AppliedRevision, message.GetMessage(), message.GetStaleSince().AsTime(),
	}
}

// watch is one call of WatchWorkspaces.
type watch struct {
	service *workspaceService
	request *statev1.WorkspaceFilter
	filter  postgres.WorkspaceFilter
	send    func(*statev1.WatchWorkspacesResponse) error
	sent    map[uuid.UUID]version
}

func (s *workspaceService) WatchWorkspaces(
	ctx context.Context,
	r *connect.Request[statev1.WatchWorkspacesRequest],
	stream *connect.ServerStream[statev1.WatchWorkspacesResponse],
) error {
	access := s.accessChanges.Subscribe()
	defer access.Close()
	filter, err := s.filter(ctx, r.Msg.GetFilter())
	if err != nil {
		return err
	}
	changed := s.changes.Subscribe()
	defer changed.Close()
	w := &watch{service: s, request: r.Msg.GetFilter(), filter: filter, send: stream.Send, sent: map[uuid.UUID]version{}}
	// Send the headers now: the caller learns that the watch began even without workspaces.
	if err := stream.Send(nil); err != nil {
		return err //nolint:wrapcheck // the caller is gone
	}
	if err := w.sendAll(ctx, true); err != nil {
		return err
	}
	authorize := time.NewTicker(authorizeInterval)
	defer authorize.Stop()
	for {
		select {
		case <-ctx.Done():
			return fault.From(ctx.Err())
		case <-service.Draining(ctx):
			return fault.New(errcode.Unavailable, "the server is stopping: watch again")
		case <-authorize.C:
			err = w.authorize(ctx)
		case <-access.Changed():
			if users, all := access.Take(); all || slices.Contains(users, caller(ctx).ID) {
				err = w.authorize(ctx)
			}
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

// authorize updates what the caller may see. A caller that lost a project must watch again.
func (w *watch) authorize(ctx context.Context) error {
	before := w.filter.ProjectIDs
	var err error
	if w.filter, err = w.service.filter(ctx, w.request); err != nil || w.filter.ProjectIDs == nil {
		return err
	}
	for _, project := range before {
		if !slices.Contains(w.filter.ProjectIDs, project) {
			return fault.New(errcode.Unavailable, "you no longer have a role in project %d: watch again", project)
		}
	}
	return nil
}

// sendAll sends every workspace with a version that the caller does not have.
func (w *watch) sendAll(ctx context.Context, initial bool) error {
	page := postgres.WorkspacePage{Size: maxPageSize}
	for {
		found, err := w.service.workspaces.List(ctx, w.service.pool, w.filter, page)
		if err != nil {
			return err
		}
		messages, err := w.service.messages(ctx, found...)
		if err != nil {
			return err
		}
		// Oldest first within a page, in the order of changes.
		for i, one := range slices.Backward(found) {
			if err := w.sendOne(one, messages[i], initial); err != nil {
				return err
			}
		}
		if len(found) < page.Size {
			return nil
		}
		page.After = found[len(found)-1].ID
	}
}

// sendChanged sends the changed workspaces that the caller watches. A workspace that leaves the filter is sent
// once more.
func (w *watch) sendChanged(ctx context.Context, ids []uuid.UUID) error {
	for chunk := range slices.Chunk(ids, maxPageSize) {
		references := make([]postgres.WorkspaceReference, len(chunk))
		for i, id := range chunk {
			references[i] = postgres.WorkspaceReference{ID: id}
		}
		found, err := w.service.workspaces.List(
			ctx,
			w.service.pool,
			postgres.WorkspaceFilter{ProjectIDs: w.filter.ProjectIDs, References: references},
			postgres.WorkspacePage{Size: len(chunk)},
		)
		if err != nil {
			return err
		}
		messages, err := w.service.messages(ctx, found...)
		if err != nil {
			return err
		}
		for i, one := range slices.Backward(found) {
			_, known := w.sent[one.ID]
			if !known && !selects(w.filter, one) {
				continue
			}
			if err := w.sendOne(one, messages[i], false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *watch) sendOne(one workspace.Workspace, message *statev1.Workspace, initial bool) error {
	now := versionOf(one, message)
	if last, known := w.sent[one.ID]; known && last == now {
		return nil
	}
	w.sent[one.ID] = now
	if one.ActualState == actualstate.Terminated {
		defer delete(w.sent, one.ID)
	}
	return w.send(&statev1.WatchWorkspacesResponse{Workspace: message, Initial: initial})
}

// selects reports whether the filter selects the workspace. It mirrors postgres.Workspaces.List.
func selects(f postgres.WorkspaceFilter, w workspace.Workspace) bool {
	matches := len(f.References) == 0 || slices.ContainsFunc(f.References, func(r postgres.WorkspaceReference) bool {
		return r.ID == w.ID || r.ID == uuid.Nil && r.Name == w.Name
	})
	terminated := f.IncludeTerminated || len(f.References) > 0 || slices.Contains(f.ActualStates, actualstate.Terminated)
	return matches &&
		(f.ProjectIDs == nil || slices.Contains(f.ProjectIDs, w.ProjectID)) &&
		(f.ProjectID == 0 || f.ProjectID == w.ProjectID) &&
		(f.AgentID == 0 || f.AgentID == w.AgentID) &&
		(f.UserID == 0 || f.UserID == w.UserID) &&
		(len(f.ActualStates) == 0 || slices.Contains(f.ActualStates, w.ActualState)) &&
		(len(f.DesiredStates) == 0 || slices.Contains(f.DesiredStates, w.DesiredState)) &&
		(terminated || w.ActualState != actualstate.Terminated)
}
