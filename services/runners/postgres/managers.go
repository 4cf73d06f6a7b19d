package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/runner"
)

// StoreContact implements [runner.Store].
func (s Runners) StoreContact(ctx context.Context, c runner.Contact, limit int) (int64, error) {
	var id int64
	err := s.tx(ctx, func(tx pgx.Tx) error {
		var err error
		id, err = updateManager(ctx, tx, c)
		if errors.Is(err, pgx.ErrNoRows) {
			id, err = addManager(ctx, tx, c, limit)
		}
		return err
	})
	return id, err
}

func contactValues(c runner.Contact) []any {
	return []any{
		c.RunnerID, c.SystemID, c.Info.Version, c.Info.Revision, c.Info.Platform, c.Info.Architecture, c.Info.Executor,
		c.Address, c.At,
	}
}

// updateManager returns [pgx.ErrNoRows] if there is no such manager.
func updateManager(ctx context.Context, tx pgx.Tx, c runner.Contact) (int64, error) {
	const update = `UPDATE runner_managers SET version = coalesce(nullif($3, ''), version),
		revision = coalesce(nullif($4, ''), revision), platform = coalesce(nullif($5, ''), platform),
		architecture = coalesce(nullif($6, ''), architecture), executor = coalesce(nullif($7, ''), executor),
		address = coalesce(nullif($8, ''), address), contacted_at = greatest(contacted_at, $9)
		WHERE runner_id = $1 AND system_id = $2 RETURNING id`
	var id int64
	if err := tx.QueryRow(ctx, update, contactValues(c)...).Scan(&id); err != nil {
		return 0, fmt.Errorf("update a manager of runner %d: %w", c.RunnerID, err)
	}
	return id, nil
}

// addManager locks the runner, so that two requests do not exceed the limit.
func addManager(ctx context.Context, tx pgx.Tx, c runner.Contact, limit int) (int64, error) {
	var locked int64
	err := tx.QueryRow(ctx, `SELECT id FROM runners WHERE id = $1 FOR NO KEY UPDATE`, c.RunnerID).Scan(&locked)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, errNoRunner(c.RunnerID)
	}
	if err != nil {
		return 0, fmt.Errorf("lock runner %d: %w", c.RunnerID, err)
	}
	// Another request may have added it before the lock.
	id, err := updateManager(ctx, tx, c)
	if !errors.Is(err, pgx.ErrNoRows) {
		return id, err
	}
	const replace = `DELETE FROM runner_managers WHERE id IN (SELECT id FROM runner_managers WHERE runner_id = $1
		ORDER BY contacted_at DESC NULLS LAST, id DESC OFFSET $2)`
	if _, err := tx.Exec(ctx, replace, c.RunnerID, max(0, limit-1)); err != nil {
		return 0, fmt.Errorf("delete the oldest manager of runner %d: %w", c.RunnerID, err)
	}
	const insert = `INSERT INTO runner_managers (runner_id, system_id, version, revision, platform, architecture, executor,
		address, created_at, contacted_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9) RETURNING id`
	if err := tx.QueryRow(ctx, insert, contactValues(c)...).Scan(&id); err != nil {
		return 0, fmt.Errorf("add a manager of runner %d: %w", c.RunnerID, err)
	}
	return id, nil
}

// DeleteManager removes a manager. Fault not_found.
func (s Runners) DeleteManager(ctx context.Context, runnerID int64, systemID string) error {
	return s.tx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM runner_managers WHERE runner_id = $1 AND system_id = $2`, runnerID, systemID)
		if err != nil {
			return fmt.Errorf("delete a manager of runner %d: %w", runnerID, err)
		}
		if tag.RowsAffected() == 0 {
			return fault.New(errcode.NotFound, "runner %d has no manager with this system_id", runnerID)
		}
		return nil
	})
}

// Managers returns the managers of runners, by runner and the latest contact first.
func (s Runners) Managers(ctx context.Context, runnerIDs ...int64) ([]runner.Manager, error) {
	const query = `SELECT id, runner_id, system_id, version, revision, platform, architecture, executor, address,
		created_at, contacted_at FROM runner_managers WHERE runner_id = ANY ($1)
		ORDER BY runner_id, contacted_at DESC NULLS LAST, id DESC`
	return collect(ctx, s.Pool, "managers", scanManager, query, runnerIDs)
}

func scanManager(row pgx.CollectableRow) (runner.Manager, error) {
	var m runner.Manager
	var contacted *time.Time
	err := row.Scan(&m.ID, &m.RunnerID, &m.SystemID, &m.Info.Version, &m.Info.Revision, &m.Info.Platform,
		&m.Info.Architecture, &m.Info.Executor, &m.Address, &m.CreatedAt, &contacted)
	m.CreatedAt, m.ContactedAt = m.CreatedAt.UTC(), timeOf(contacted)
	return m, err //nolint:wrapcheck // the caller wraps it
}

// LastContacts returns the latest stored contact of each runner that had one.
func (s Runners) LastContacts(ctx context.Context, runnerIDs ...int64) (map[int64]time.Time, error) {
	const query = `SELECT runner_id, max(contacted_at) FROM runner_managers
		WHERE runner_id = ANY ($1) AND contacted_at IS NOT NULL GROUP BY runner_id`
	type contact struct {
		RunnerID int64
		At       time.Time
	}
	found, err := collect(ctx, s.Pool, "contacts of runners", pgx.RowToStructByPos[contact], query, runnerIDs)
	if err != nil {
		return nil, err
	}
	contacts := make(map[int64]time.Time, len(found))
	for _, c := range found {
		contacts[c.RunnerID] = c.At.UTC()
	}
	return contacts, nil
}
