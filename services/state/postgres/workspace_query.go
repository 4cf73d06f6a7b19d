package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/actualstate"
	"lockstep.internal/services/state/workspace"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// WorkspaceReference names a workspace by id, or by name if the id is zero.
type WorkspaceReference struct {
	ID   uuid.UUID
	Name string
}

func (r WorkspaceReference) String() string {
	if r.ID != uuid.Nil {
		return r.ID.String()
	}
	return fmt.Sprintf("%q", r.Name)
}

// WorkspaceFilter selects workspaces. An empty field selects all.
type WorkspaceFilter struct {
	// ProjectIDs that the caller may see; nil for all, empty for none.
	ProjectIDs    []int64
	ProjectID     int64
	AgentID       int64
	UserID        int64
	ActualStates  []actualstate.State
	DesiredStates []workspace.DesiredState
	// IncludeTerminated is implied by References and by ActualStates with terminated.
	IncludeTerminated bool
	References        []WorkspaceReference
}

// WorkspacePage selects a page of a list, newest first. After is the lowest id of the previous page; zero
// selects the first page.
type WorkspacePage struct {
	After uuid.UUID
	Size  int
}

// Get returns a workspace. A name selects the workspace that is not terminated, or else the newest one.
// It returns the fault not_found if the workspace does not exist.
func (s *Workspaces) Get(ctx context.Context, db Querier, ref WorkspaceReference) (workspace.Workspace, error) {
	return s.get(ctx, db, ref, "")
}

// LockOne is Get with a row lock until the end of the transaction.
func (s *Workspaces) LockOne(ctx context.Context, tx pgx.Tx, ref WorkspaceReference) (workspace.Workspace, error) {
	return s.get(ctx, tx, ref, " for no key update")
}

func (s *Workspaces) get(
	ctx context.Context,
	db Querier,
	ref WorkspaceReference,
	locking string,
) (workspace.Workspace, error) {
	query, arg := `select `+workspaceColumns+` from workspaces where id = $1`, any(ref.ID)
	if ref.ID == uuid.Nil {
		query, arg = `select `+workspaceColumns+` from workspaces where name = $1
			order by actual_state = 'terminated', id desc limit 1`, any(
			ref.Name,
		)
	}
	rows, err := db.Query(ctx, query+locking, arg)
	if err != nil {
		return workspace.Workspace{}, fmt.Errorf("read workspace %s: %w", ref, err)
	}
	w, err := pgx.CollectExactlyOneRow(rows, scanWorkspace)
	if errors.Is(err, pgx.ErrNoRows) {
		return w, fault.Wrap(err, errcode.NotFound, "workspace %s does not exist", ref)
	}
	if err != nil {
		return w, fmt.Errorf("read workspace %s: %w", ref, err)
	}
	return w, nil
}

// GetByIdempotencyKey returns the workspace that a user created with a key. It returns the fault not_found if there is
// none.
func (s *Workspaces) GetByIdempotencyKey(
	ctx context.Context,
	db Querier,
	userID int64,
	key string,
) (workspace.Workspace, error) {
	rows, err := db.Query(
		ctx,
		`select `+workspaceColumns+` from workspaces where user_id = $1 and idempotency_key = $2`,
		userID,
		key,
	)
	if err != nil {
		return workspace.Workspace{}, fmt.Errorf("read workspace by idempotency key: %w", err)
	}
	w, err := pgx.CollectExactlyOneRow(rows, scanWorkspace)
	if errors.Is(err, pgx.ErrNoRows) {
		return w, fault.Wrap(err, errcode.NotFound, "no workspace was created with idempotency key %q", key)
	}
	if err != nil {
		return w, fmt.Errorf("read workspace by idempotency key: %w", err)
	}
	return w, nil
}

// List returns one page of the selected workspaces, newest first. The last page is shorter than its size.
func (s *Workspaces) List(
	ctx context.Context,
	db Querier,
	f WorkspaceFilter,
	page WorkspacePage,
) ([]workspace.Workspace, error) {
	ids, names := []uuid.UUID{}, []string{}
	for _, r := range f.References {
		if r.ID != uuid.Nil {
			ids = append(ids, r.ID)
		} else {
			names = append(names, r.Name)
		}
	}
	terminated := f.IncludeTerminated || len(f.References) > 0
	actual := make([]string, len(f.ActualStates))
	for i, a := range f.ActualStates {
		actual[i] = string(a)
		terminated = terminated || a == actualstate.Terminated
	}
	desired := make([]string, len(f.DesiredStates))
	for i, d := range f.DesiredStates {
		desired[i] = string(d)
	}
	rows, err := db.Query(
		ctx,
		`
		select `+workspaceColumns+` from workspaces
		where ($1::bigint[] is null or project_id = any($1)) and ($2 = 0 or project_id = $2) and ($3 = 0 or agent_id = $3)
			and ($4 = 0 or user_id = $4)
			and (cardinality($5::text[]) = 0 or actual_state = any($5))
			and (cardinality($6::text[]) = 0 or desired_state = any($6))
			and ($7 or actual_state <> 'terminated')
			and (cardinality($8::uuid[]) + cardinality($9::text[]) = 0 or id = any($8) or name = any($9))
			and ($10::uuid is null or id < $10)
		order by id desc limit $11`,
		f.ProjectIDs,
		f.ProjectID,
		f.AgentID,
		f.UserID,
		actual,
		desired,
		terminated,
		ids,
		names,
		nullable(page.After),
		page.Size,
	)
	if err != nil {
		return nil, fmt.Errorf("list workspaces: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanWorkspace)
	if err != nil {
		return nil, fmt.Errorf("list workspaces: %w", err)
	}
	return out, nil
}
