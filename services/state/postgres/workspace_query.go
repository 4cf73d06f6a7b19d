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
	"lockstep.internal/services/state/domain"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// WorkspaceReference names a workspace by id, or by name where the id is zero.
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

// WorkspaceFilter selects workspaces; what is empty selects all.
type WorkspaceFilter struct {
	// ProjectIDs that the caller may see; nil for every one, empty for none.
	ProjectIDs    []int64
	ProjectID     int64
	AgentID       int64
	UserID        int64
	ActualStates  []domain.ActualState
	DesiredStates []domain.DesiredState
	// IncludeTerminated is implied by ActualStates that name it and by References.
	IncludeTerminated bool
	References        []WorkspaceReference
}

// WorkspacePage asks for workspaces after one in the list. The list is newest first, so After is the lowest id of the page before; the zero id asks for the first page.
type WorkspacePage struct {
	After uuid.UUID
	Size  int
}

// Get returns a workspace. A name is that of the one workspace that is not terminated, else of the newest one terminated. Fault not_found.
func (s *Workspaces) Get(ctx context.Context, db Querier, ref WorkspaceReference) (domain.Workspace, error) {
	return s.get(ctx, db, ref, "")
}

// LockOne is Get that locks the workspace until the end of the transaction.
func (s *Workspaces) LockOne(ctx context.Context, tx pgx.Tx, ref WorkspaceReference) (domain.Workspace, error) {
	return s.get(ctx, tx, ref, " for no key update")
}

func (s *Workspaces) get(ctx context.Context, db Querier, ref WorkspaceReference, locking string) (domain.Workspace, error) {
	query, arg := `select `+workspaceColumns+` from workspaces where id = $1`, any(ref.ID)
	if ref.ID == uuid.Nil {
		query, arg = `select `+workspaceColumns+` from workspaces where name = $1 order by actual_state = 'terminated', id desc limit 1`, any(ref.Name)
	}
	rows, err := db.Query(ctx, query+locking, arg)
	if err != nil {
		return domain.Workspace{}, fmt.Errorf("read workspace %s: %w", ref, err)
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

// GetByIdempotencyKey returns the workspace that a user created with the key. Fault not_found.
func (s *Workspaces) GetByIdempotencyKey(ctx context.Context, db Querier, userID int64, key string) (domain.Workspace, error) {
	rows, err := db.Query(ctx, `select `+workspaceColumns+` from workspaces where user_id = $1 and idempotency_key = $2`, userID, key)
	if err != nil {
		return domain.Workspace{}, fmt.Errorf("read workspace by idempotency key: %w", err)
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

// List returns one page of the workspaces that the filter selects, newest first. A page shorter than its size is the last.
func (s *Workspaces) List(ctx context.Context, db Querier, f WorkspaceFilter, page WorkspacePage) ([]domain.Workspace, error) {
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
	rows, err := db.Query(ctx, `
		select `+workspaceColumns+` from workspaces
		where ($1::bigint[] is null or project_id = any($1)) and ($2 = 0 or project_id = $2) and ($3 = 0 or agent_id = $3) and ($4 = 0 or user_id = $4)
			and (cardinality($5::text[]) = 0 or actual_state = any($5)) and (cardinality($6::text[]) = 0 or desired_state = any($6))
			and ($7 or actual_state <> 'terminated')
			and (cardinality($8::uuid[]) + cardinality($9::text[]) = 0 or id = any($8) or name = any($9))
			and ($10::uuid is null or id < $10)
		order by id desc limit $11`,
		f.ProjectIDs, f.ProjectID, f.AgentID, f.UserID, actual, desired, terminated, ids, names, nullable(page.After), page.Size)
	if err != nil {
		return nil, fmt.Errorf("list workspaces: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanWorkspace)
	if err != nil {
		return nil, fmt.Errorf("list workspaces: %w", err)
	}
	return out, nil
}
