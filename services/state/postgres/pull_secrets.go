package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/seal"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/pullsecret"
)

// PullSecrets are the credentials of a project's registries.
type PullSecrets struct {
	Registries []pullsecret.Registry

	box []byte
}

func pullSecrets(ctx context.Context, db Querier, projectID int64) (PullSecrets, error) {
	rows, err := db.Query(ctx, `select registries, box from pull_secrets where project_id = $1`, projectID)
	if err != nil {
		return PullSecrets{}, fmt.Errorf("read the pull secrets of project %d: %w", projectID, err)
	}
	p, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (PullSecrets, error) {
		var p PullSecrets
		err := row.Scan(&p.Registries, &p.box)
		return p, err //nolint:wrapcheck // see below
	})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return p, fmt.Errorf("read the pull secrets of project %d: %w", projectID, err)
	}
	return p, nil
}

// Registries returns the registries of a project that have pull secrets, by host.
func (s *Secrets) Registries(ctx context.Context, db Querier, projectID int64) ([]pullsecret.Registry, error) {
	p, err := pullSecrets(ctx, db, projectID)
	return p.Registries, err
}

// PullConfig returns the content of the Kubernetes Secret with the pull secrets of a project.
func (s *Secrets) PullConfig(ctx context.Context, db Querier, projectID int64) (seal.Values, error) {
	p, err := pullSecrets(ctx, db, projectID)
	if err != nil {
		return nil, err
	}
	values, err := s.openPull(projectID, p)
	if err != nil {
		return nil, err
	}
	return pullsecret.Config(values)
}

func (s *Secrets) openPull(projectID int64, p PullSecrets) (seal.Values, error) {
	if p.box == nil {
		return seal.Values{}, nil
	}
	values, err := s.Vault.OpenPull(projectID, p.box)
	if err != nil {
		return nil, fmt.Errorf("read the pull secrets: %w", err)
	}
	return values, nil
}

// PullDigest returns the digest of the pull secrets of a project; empty without any. Call it after
// [Directory.HoldSettings], which keeps it as it is until the end of the transaction.
func (s *Secrets) PullDigest(ctx context.Context, tx pgx.Tx, projectID int64) (string, error) {
	var digest string
	err := tx.QueryRow(ctx, `select digest from pull_secrets where project_id = $1`, projectID).Scan(&digest)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("read the pull secrets of project %d: %w", projectID, err)
	}
	return digest, nil
}

// PutPullSecret stores the credentials of a registry, and queues the workspaces of the project for rendering. It
// returns the fault of [directory.Organization.Changeable] or [pullsecret.Set].
func (s *Secrets) PutPullSecret(
	ctx context.Context, tx pgx.Tx, d *Directory, projectID int64, r pullsecret.Registry, value seal.Value,
) error {
	stored, values, err := s.lockPullSecrets(ctx, tx, d, projectID)
	if err != nil {
		return err
	}
	registries, err := pullsecret.Set(stored.Registries, r)
	if err != nil {
		return err
	}
	values[r.Host] = value
	return s.savePullSecrets(ctx, tx, projectID, registries, values)
}

// RemovePullSecret removes the credentials of a registry, and queues the workspaces of the project for rendering. It
// returns the fault not_found if there are none.
func (s *Secrets) RemovePullSecret(ctx context.Context, tx pgx.Tx, d *Directory, projectID int64, host string) error {
	stored, values, err := s.lockPullSecrets(ctx, tx, d, projectID)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(stored.Registries, func(r pullsecret.Registry) bool { return r.Host == host })
	if at < 0 {
		return fault.New(errcode.NotFound, "project %d has no pull secret of registry %.80q", projectID, host)
	}
	delete(values, host)
	return s.savePullSecrets(ctx, tx, projectID, slices.Delete(stored.Registries, at, at+1), values)
}

// lockPullSecrets returns the pull secrets of a project. Until the end of the transaction, nobody changes them, and no
// workspace is created.
func (s *Secrets) lockPullSecrets(
	ctx context.Context, tx pgx.Tx, d *Directory, projectID int64,
) (PullSecrets, seal.Values, error) {
	if _, err := d.LockCellSettings(ctx, tx); err != nil {
		return PullSecrets{}, nil, err
	}
	if err := lockChangeable(ctx, tx, directory.Scope{Kind: directory.ScopeProject, ID: projectID}); err != nil {
		return PullSecrets{}, nil, err
	}
	stored, err := pullSecrets(ctx, tx, projectID)
	if err != nil {
		return stored, nil, err
	}
	values, err := s.openPull(projectID, stored)
	return stored, values, err
}

func (s *Secrets) savePullSecrets(
	ctx context.Context, tx pgx.Tx, projectID int64, registries []pullsecret.Registry, values seal.Values,
) error {
	digest := ""
	var err error
	if len(values) == 0 {
		_, err = tx.Exec(ctx, `delete from pull_secrets where project_id = $1`, projectID)
	} else {
		digest = s.Vault.Digest(values)
		var box []byte
		if box, err = s.Vault.SealPull(projectID, values); err != nil {
			return fmt.Errorf("store the pull secrets: %w", err)
		}
		_, err = tx.Exec(ctx, `
			insert into pull_secrets (project_id, registries, box, digest) values ($1, $2, $3, $4)
			on conflict (project_id) do update set registries = excluded.registries, box = excluded.box,
				digest = excluded.digest`, projectID, registries, box, digest)
	}
	if err == nil {
		_, err = tx.Exec(ctx, `
			with locked as (
				select id from workspaces where desired_state <> 'terminated' and project_id = $1
					order by id for no key update)
			update workspaces w set rendered_revision = 0, spec = case when $2 = '' then spec - 'pull_secret_digest'
				else jsonb_set(spec, '{pull_secret_digest}', to_jsonb($2::text)) end
			from locked where locked.id = w.id`, projectID, digest)
	}
	if err == nil {
		_, err = tx.Exec(ctx, `select pg_notify($1, '')`, RenderChannel)
	}
	if err != nil {
		return fmt.Errorf("store the pull secrets of project %d: %w", projectID, err)
	}
	return nil
}
