package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/admission/chain"
	"lockstep.internal/services/admission/controller"
)

// AskChannel is the channel of notifications that something is to be asked.
const AskChannel = "lockstep_admission_asks"

// Querier is a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Controllers stores controllers.
type Controllers struct {
	Pool *pgxpool.Pool
	Now  func() time.Time
}

const controllerColumns = `c.id, c.level, c.owner_id, c.position, c.revision, c.settings, c.secret, c.created_by,
	c.created_at, c.updated_at, c.deleted_at IS NOT NULL, coalesce(c.secret_before_until, c.created_at)`

func controllerTargets(c *controller.Controller, settings *[]byte) []any {
	return []any{
		&c.ID, &c.Level, &c.Owner.ID, &c.Position, &c.Revision, settings, &c.Secret, &c.CreatedBy, &c.CreatedAt,
		&c.UpdatedAt, &c.Deleted, &c.SecretBeforeUntil,
	}
}

func scanController(row pgx.CollectableRow) (controller.Controller, error) {
	var c controller.Controller
	var settings []byte
	if err := row.Scan(controllerTargets(&c, &settings)...); err != nil {
		return c, err //nolint:wrapcheck // the caller wraps it
	}
	return c, readSettings(&c, settings)
}

func readSettings(c *controller.Controller, settings []byte) error {
	if err := json.Unmarshal(settings, &c.Settings); err != nil {
		return fmt.Errorf("decode the settings of controller %d: %w", c.ID, err)
	}
	c.CreatedAt, c.UpdatedAt, c.SecretBeforeUntil = c.CreatedAt.UTC(), c.UpdatedAt.UTC(), c.SecretBeforeUntil.UTC()
	return nil
}

func readControllers(ctx context.Context, db Querier, rest string, args ...any) ([]controller.Controller, error) {
	rows, err := db.Query(ctx, `SELECT `+controllerColumns+` FROM controllers c `+rest, args...)
	if err != nil {
		return nil, fmt.Errorf("read controllers: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanController)
	if err != nil {
		return nil, fmt.Errorf("read controllers: %w", err)
	}
	return found, nil
}

// List returns the controllers of an owner, in their order.
func (s Controllers) List(ctx context.Context, owner controller.Owner) ([]controller.Controller, error) {
	return list(ctx, s.Pool, owner)
}

func list(ctx context.Context, db Querier, owner controller.Owner) ([]controller.Controller, error) {
	return readControllers(ctx, db, `WHERE level = $1 AND owner_id = $2 AND deleted_at IS NULL ORDER BY position, id`,
		string(owner.Level), owner.ID)
}

// OfProjectsAndGroups returns all controllers of projects and groups. They have their owner, id, position and name.
func (s Controllers) OfProjectsAndGroups(ctx context.Context) ([]controller.Controller, error) {
	rows, err := s.Pool.Query(ctx, `
		SELECT level, owner_id, position, id, name FROM controllers WHERE level <> $1 AND deleted_at IS NULL
		ORDER BY level, owner_id, position, id`, string(chain.LevelInstance))
	if err != nil {
		return nil, fmt.Errorf("read controllers: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c controller.Controller, err error) {
		err = row.Scan(&c.Level, &c.Owner.ID, &c.Position, &c.ID, &c.Name)
		return c, err //nolint:wrapcheck // the caller wraps it
	})
	if err != nil {
		return nil, fmt.Errorf("read controllers: %w", err)
	}
	return found, nil
}

// Get returns a controller.
func (s Controllers) Get(ctx context.Context, id int64) (controller.Controller, error) {
	return get(ctx, s.Pool, id, "")
}

func get(ctx context.Context, db Querier, id int64, lock string) (controller.Controller, error) {
	found, err := readControllers(ctx, db, `WHERE id = $1 AND deleted_at IS NULL `+lock, id)
	switch {
	case err != nil:
		return controller.Controller{}, err
	case len(found) == 0:
		return controller.Controller{}, NotFound(id)
	}
	return found[0], nil
}

// NotFound is the error of a controller that does not exist.
func NotFound(id int64) error { return fault.New(errcode.NotFound, "controller %d does not exist", id) }

// lockOwner lets one transaction at a time change which controllers an owner has.
func lockOwner(ctx context.Context, tx pgx.Tx, owner controller.Owner) error {
	_, err := tx.Exec(ctx,
		`SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || ' controllers of ' || $1 || $2::bigint, 0))`,
		string(owner.Level), owner.ID)
	return err //nolint:wrapcheck // the caller wraps it
}

func execute(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	if _, err := tx.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("store a controller: %w", err)
	}
	return nil
}

// Create stores a new controller as the last one of its owner. secret is called with its id, and returns the sealed
// signing secret.
func (s Controllers) Create(
	ctx context.Context, owner controller.Owner, settings controller.Settings, createdBy int64,
	secret func(id int64) ([]byte, error),
) (created controller.Controller, err error) {
	content, err := json.Marshal(settings)
	if err != nil {
		return created, fmt.Errorf("encode the settings of a controller: %w", err)
	}
	err = postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if err := lockOwner(ctx, tx, owner); err != nil {
			return err
		}
		existing, err := list(ctx, tx, owner)
		if err != nil {
			return err
		}
		if len(existing) >= controller.MaxPerOwner {
			return fault.New(errcode.QuotaExceeded, "the %s has %d controllers, which is the limit: delete one first",
				owner.Level, len(existing))
		}
		position := 1
		for _, c := range existing {
			position = max(position, c.Position+1)
		}
		if err := requireFreeName(existing, 0, settings.Name); err != nil {
			return err
		}
		now := s.Now()
		created = controller.Controller{
			Settings: settings, Owner: owner, Position: position, Revision: 1, CreatedBy: createdBy, CreatedAt: now,
			UpdatedAt: now,
		}
		err = tx.QueryRow(ctx, `
			INSERT INTO controllers (level, owner_id, name, position, settings, created_by, created_at, updated_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $7) RETURNING id`,
			string(owner.Level), owner.ID, settings.Name, position, content, createdBy, now).Scan(&created.ID)
		if err != nil {
			return fmt.Errorf("store a controller: %w", err)
		}
		if created.Secret, err = secret(created.ID); err != nil {
			return err
		}
		return execute(ctx, tx, `UPDATE controllers SET secret = $2 WHERE id = $1`, created.ID, created.Secret)
	})
	return created, err
}

func requireFreeName(existing []controller.Controller, id int64, name string) error {
	if slices.ContainsFunc(existing, func(c controller.Controller) bool { return c.ID != id && c.Name == name }) {
		return fault.New(errcode.AlreadyExists, "a controller with the name %q exists here: choose another name", name).
			With("field", "name")
	}
	return nil
}

// Update stores settings of a controller. edit returns them from the stored ones, and may refuse. Jobs that wait for
// the controller ask it again.
func (s Controllers) Update(
	ctx context.Context, id int64, edit func(controller.Controller) (controller.Settings, error),
) (updated controller.Controller, err error) {
	err = s.change(ctx, id, func(tx pgx.Tx, c controller.Controller) error {
		settings, err := edit(c)
		if err != nil {
			return err
		}
		existing, err := list(ctx, tx, c.Owner)
		if err != nil {
			return err
		}
		if err := requireFreeName(existing, id, settings.Name); err != nil {
			return err
		}
		content, err := json.Marshal(settings)
		if err != nil {
			return fmt.Errorf("encode the settings of controller %d: %w", id, err)
		}
		updated = c
		updated.Settings, updated.Revision, updated.UpdatedAt = settings, c.Revision+1, s.Now()
		return execute(ctx, tx,
			`UPDATE controllers SET name = $2, settings = $3, revision = $4, updated_at = $5 WHERE id = $1`,
			id, settings.Name, content, updated.Revision, updated.UpdatedAt)
	})
	return updated, err
}

// RotateSecret stores other signing secrets of a controller. rotate returns them sealed, and may refuse. The secret
// before signs requests until a time. Jobs that wait for the controller do not ask it again.
func (s Controllers) RotateSecret(
	ctx context.Context, id int64, beforeUntil time.Time, rotate func(controller.Controller) ([]byte, error),
) (rotated controller.Controller, err error) {
	err = postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if rotated, err = get(ctx, tx, id, "FOR UPDATE"); err != nil {
			return err
		}
		if rotated.Secret, err = rotate(rotated); err != nil {
			return err
		}
		rotated.SecretBeforeUntil, rotated.UpdatedAt = beforeUntil, s.Now()
		return execute(ctx, tx,
			`UPDATE controllers SET secret = $2, secret_before_until = $3, updated_at = $4 WHERE id = $1`,
			id, rotated.Secret, rotated.SecretBeforeUntil, rotated.UpdatedAt)
	})
	return rotated, err
}

// Delete deletes a controller, if allow returns nil. Jobs that wait for it continue without it.
func (s Controllers) Delete(ctx context.Context, id int64, allow func(controller.Controller) error) error {
	return s.change(ctx, id, func(tx pgx.Tx, c controller.Controller) error {
		if err := allow(c); err != nil {
			return err
		}
		return execute(ctx, tx, `UPDATE controllers SET deleted_at = $2 WHERE id = $1`, id, s.Now())
	})
}

// change changes a controller, and lets the jobs that wait for it look at it.
func (s Controllers) change(
	ctx context.Context, id int64, change func(tx pgx.Tx, c controller.Controller) error,
) error {
	return postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		unlocked, err := get(ctx, tx, id, "")
		if err != nil {
			return err
		}
		if err := lockOwner(ctx, tx, unlocked.Owner); err != nil {
			return fmt.Errorf("change controller %d: %w", id, err)
		}
		c, err := get(ctx, tx, id, "FOR UPDATE")
		if err != nil {
			return err
		}
		if err := change(tx, c); err != nil {
			return err
		}
		var batch pgx.Batch
		batch.Queue(`UPDATE asks SET due_at = $2 WHERE controller_id = $1`, id, s.Now())
		batch.Queue(`SELECT pg_notify($1, '')`, AskChannel)
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return fmt.Errorf("ask controller %d again: %w", id, err)
		}
		return nil
	})
}

// ErrOtherControllers reports that the ids of a new order are not those of the owner.
var ErrOtherControllers = errors.New("the ids are not those of all controllers of the owner")

// Reorder sets the order of the controllers of an owner.
func (s Controllers) Reorder(
	ctx context.Context, owner controller.Owner, ids []int64,
) (reordered []controller.Controller, err error) {
	err = postgres.InTx(ctx, s.Pool, func(tx pgx.Tx) error {
		if err := lockOwner(ctx, tx, owner); err != nil {
			return fmt.Errorf("lock the controllers of a %s: %w", owner.Level, err)
		}
		existing, err := list(ctx, tx, owner)
		if err != nil {
			return err
		}
		known := make([]int64, len(existing))
		for i, c := range existing {
			known[i] = c.ID
		}
		if !slices.Equal(slices.Sorted(slices.Values(known)), slices.Sorted(slices.Values(ids))) {
			return ErrOtherControllers
		}
		_, err = tx.Exec(ctx, `
			UPDATE controllers SET position = o.position, updated_at = $2
			FROM unnest($1::bigint[]) WITH ORDINALITY AS o (id, position) WHERE controllers.id = o.id`, ids, s.Now())
		if err != nil {
			return fmt.Errorf("reorder controllers: %w", err)
		}
		reordered, err = list(ctx, tx, owner)
		return err
	})
	return reordered, err
}

// Deciding returns the controllers that may decide about jobs of projects in groups.
func Deciding(ctx context.Context, db Querier, projects, groups []int64) ([]controller.Controller, error) {
	return readControllers(ctx, db, `
		WHERE deleted_at IS NULL AND (level = $1 AND owner_id = 0 OR level = $2 AND owner_id = ANY ($3)
			OR level = $4 AND owner_id = ANY ($5)) ORDER BY id`,
		string(chain.LevelInstance), string(chain.LevelGroup), groups, string(chain.LevelProject), projects)
}
