package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/workspace"
)

// LockPerson locks a user, so that the roles of the user stay until the end of the transaction. Lock it before
// workspaces.
func (d *Directory) LockPerson(ctx context.Context, tx pgx.Tx, id int64) error {
	return lockUser(ctx, tx, id)
}

// SaveShares stores the shares of a locked workspace. Save does not store them.
func (s *Workspaces) SaveShares(ctx context.Context, tx pgx.Tx, w workspace.Workspace) error {
	shares := append([]workspace.Share{}, w.Shares...)
	_, err := tx.Exec(ctx, `update workspaces set shares = $2 where id = $1`+s.returning("id"), w.ID, shares)
	if err != nil {
		return fmt.Errorf("store the shares of workspace %s: %w", w.ID, err)
	}
	return nil
}

// EndShares ends the shares of a locked user in projects in which the user has no role any more. It returns the
// workspaces without them.
func (d *Directory) EndShares(
	ctx context.Context, tx pgx.Tx, workspaces *Workspaces, userID int64,
) ([]workspace.Workspace, error) {
	shared, err := collect(ctx, tx, `
		select `+workspaceColumns+` from workspaces
		where shares <> '[]' and shares @> jsonb_build_array(jsonb_build_object('user_id', $1::bigint))
		order by id for no key update`,
		scanWorkspace, func(w workspace.Workspace) workspace.Workspace { return w }, userID)
	if err != nil {
		return nil, err
	}
	var ended []workspace.Workspace
	for _, w := range shared {
		role, err := d.Within(tx).Role(ctx, userID, directory.Scope{Kind: directory.ScopeProject, ID: w.ProjectID})
		if err != nil {
			return nil, err
		}
		if role != directory.RoleNone {
			continue
		}
		w, _ = w.Unshare(workspace.Share{UserID: userID})
		if err := workspaces.SaveShares(ctx, tx, w); err != nil {
			return nil, err
		}
		ended = append(ended, w)
	}
	return ended, nil
}
