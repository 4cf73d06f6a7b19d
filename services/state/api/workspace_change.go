package api

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/outbox"
	libpostgres "lockstep.internal/libs/postgres"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/workspace"
)

// noLock locks nothing.
func noLock(context.Context, pgx.Tx) error { return nil }

// change calls lock, locks a workspace, checks that the caller may manage it, calls decide, and stores the result and
// its messages, in one transaction.
func (s *workspaceService) change(
	ctx context.Context, ref *statev1.WorkspaceReference,
	lock func(context.Context, pgx.Tx) error,
	decide func(pgx.Tx, workspace.Workspace) (workspace.Workspace, []workspace.Event, error),
) (workspace.Workspace, error) {
	r, err := referenceOf(ref)
	if err != nil {
		return workspace.Workspace{}, err
	}
	var after workspace.Workspace
	err = libpostgres.InTx(ctx, s.pool, func(tx pgx.Tx) error {
		if err := lock(ctx, tx); err != nil {
			return err
		}
		before, err := s.workspaces.LockOne(ctx, tx, r)
		if err != nil {
			return err
		}
		inTx := access{directory: s.directory.Within(tx)}
		if err := inTx.allowWorkspace(ctx, before, authz.ManageWorkspace, r); err != nil {
			return err
		}
		var events []workspace.Event
		if after, events, err = decide(tx, before); err != nil {
			return err
		}
		update := workspace.Update{Before: before, After: after, Events: events}
		if !update.Changed() {
			return nil
		}
		if err := s.workspaces.Save(ctx, tx, after); err != nil {
			return err
		}
		return s.publish(ctx, tx, update)
	})
	return after, err
}

// publish renders the manifests of an update, and puts its messages into the outbox in the transaction of the change.
func (s *workspaceService) publish(ctx context.Context, tx pgx.Tx, update workspace.Update) error {
	agents := []int64{update.After.AgentID}
	configured, err := s.directory.Within(tx).AgentConfigurations(ctx, agents)
	if err != nil {
		return err
	}
	messages, err := s.encoder.Workspaces(ctx, configured, update)
	if err != nil {
		return err
	}
	if err := outbox.Insert(ctx, tx, messages...); err != nil {
		return fmt.Errorf("publish workspace %s: %w", update.After.ID, err)
	}
	return nil
}
