package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/seal"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/vault"
	"lockstep.internal/services/state/workspace"
)

// Secrets stores the sealed secret values of workspaces.
type Secrets struct{ Vault *vault.Vault }

// Put replaces all values of a kind. The caller has locked or inserted the workspace in the transaction.
func (s *Secrets) Put(
	ctx context.Context,
	tx pgx.Tx,
	workspaceID uuid.UUID,
	kind vault.Kind,
	values seal.Values,
) error {
	if len(values) == 0 {
		_, err := tx.Exec(ctx, `delete from workspace_secrets where workspace_id = $1 and kind = $2`, workspaceID, kind)
		if err != nil {
			return fmt.Errorf("delete the %s secrets of workspace %s: %w", kind, workspaceID, err)
		}
		return nil
	}
	box, err := s.Vault.Seal(workspaceID.String(), kind, values)
	if err != nil {
		return fmt.Errorf("store secrets: %w", err)
	}
	_, err = tx.Exec(ctx, `insert into workspace_secrets (workspace_id, kind, box) values ($1, $2, $3)
		on conflict (workspace_id, kind) do update set box = excluded.box`, workspaceID, kind, box)
	if err != nil {
		return fmt.Errorf("store the %s secrets of workspace %s: %w", kind, workspaceID, err)
	}
	return nil
}

// Get returns all values of a kind, or none.
func (s *Secrets) Get(ctx context.Context, db Querier, workspaceID uuid.UUID, kind vault.Kind) (seal.Values, error) {
	rows, err := db.Query(
		ctx,
		`select box from workspace_secrets where workspace_id = $1 and kind = $2`,
		workspaceID,
		kind,
	)
	if err != nil {
		return nil, fmt.Errorf("read the %s secrets of workspace %s: %w", kind, workspaceID, err)
	}
	box, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[[]byte])
	if errors.Is(err, pgx.ErrNoRows) {
		return seal.Values{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the %s secrets of workspace %s: %w", kind, workspaceID, err)
	}
	values, err := s.Vault.Open(workspaceID.String(), kind, box)
	if err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	return values, nil
}

// SecretStore implements secret.Store.
type SecretStore struct {
	Pool       *pgxpool.Pool
	Directory  *Directory
	Workspaces *Workspaces
	Secrets    *Secrets
}

// Agent implements secret.Store.
func (s *SecretStore) Agent(ctx context.Context, id int64) (agent.Agent, error) {
	return s.Directory.Agent(ctx, id)
}

// Workspace implements secret.Store.
func (s *SecretStore) Workspace(ctx context.Context, id uuid.UUID) (workspace.Workspace, error) {
	return s.Workspaces.Get(ctx, s.Pool, WorkspaceReference{ID: id})
}

// Values implements secret.Store.
func (s *SecretStore) Values(ctx context.Context, workspaceID uuid.UUID, kind vault.Kind) (seal.Values, error) {
	return s.Secrets.Get(ctx, s.Pool, workspaceID, kind)
}

// PullConfig implements secret.Store.
func (s *SecretStore) PullConfig(ctx context.Context, projectID int64) (seal.Values, error) {
	return s.Secrets.PullConfig(ctx, s.Pool, projectID)
}
