package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/publish"
	"lockstep.internal/services/runners/runner"
)

// RunnerChannel is the channel of notifications about runners that changed. The payload is the id.
const RunnerChannel = "lockstep_runners_runners"

// RunnerChanges is a LISTEN client for the ids of changed runners. Its subscriptions are a [runner.Changes].
type RunnerChanges = postgres.ChangeListener[int64]

// NewRunnerChanges listens on [RunnerChannel].
func NewRunnerChanges(pool *pgxpool.Pool) *RunnerChanges {
	parse := func(payload string) (int64, error) { return strconv.ParseInt(payload, 10, 64) }
	return postgres.NewChangeListener(pool, RunnerChannel, parse)
}

// Runners stores runners and their managers, publishes changes of runners, and notifies all replicas. It implements
// [runner.Store]. Errors are faults where the caller can do something about them.
type Runners struct {
	Pool    *pgxpool.Pool
	Encoder publish.Encoder
	Now     func() time.Time
}

const runnerColumns = `id, type, organization_id, group_id, project_ids, description, maintenance_note, tags,
	run_untagged, locked, protected, paused, maximum_timeout_s, user_ids, group_ids, token_hash, token_expires_at,
	created_by, created_at, revision`

// runnerValues returns the values of runnerColumns without the id.
func runnerValues(r runner.Runner) []any {
	return []any{
		string(r.Type), r.OrganizationID, r.GroupID, list(r.ProjectIDs), r.Description, r.MaintenanceNote, list(r.Tags),
		r.RunUntagged, r.Locked, r.Protected, r.Paused, seconds(r.MaximumTimeout), list(r.UserIDs), list(r.GroupIDs),
		r.TokenHash[:], nullable(r.TokenExpiresAt), r.CreatedBy, r.CreatedAt, r.Revision,
	}
}

// list returns an empty list instead of nil, which would be NULL.
func list[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}

// unlist returns nil for an empty list.
func unlist[T any](values []T) []T {
	if len(values) == 0 {
		return nil
	}
	return values
}

// scanRunner reads a row of runnerColumns.
func scanRunner(row pgx.CollectableRow) (runner.Runner, error) {
	var r runner.Runner
	var timeout int64
	var hash []byte
	var expires *time.Time
	err := row.Scan(&r.ID, &r.Type, &r.OrganizationID, &r.GroupID, &r.ProjectIDs, &r.Description, &r.MaintenanceNote,
		&r.Tags, &r.RunUntagged, &r.Locked, &r.Protected, &r.Paused, &timeout, &r.UserIDs, &r.GroupIDs, &hash, &expires,
		&r.CreatedBy, &r.CreatedAt, &r.Revision)
	if err != nil {
		return r, err //nolint:wrapcheck // the caller wraps it
	}
	if len(hash) != len(r.TokenHash) {
		return r, fmt.Errorf("runner %d: the hash of its token has %d bytes", r.ID, len(hash))
	}
	r.TokenHash = runner.TokenHash(hash)
	r.MaximumTimeout = time.Duration(timeout) * time.Second
	r.ProjectIDs, r.Tags = unlist(r.ProjectIDs), unlist(r.Tags)
	r.UserIDs, r.GroupIDs = unlist(r.UserIDs), unlist(r.GroupIDs)
	r.TokenExpiresAt, r.CreatedAt = timeOf(expires), r.CreatedAt.UTC()
	return r, nil
}

// Create stores a new runner and returns it with its id.
func (s Runners) Create(ctx context.Context, r runner.Runner) (runner.Runner, error) {
	const insert = `INSERT INTO runners (type, organization_id, group_id, project_ids, description, maintenance_note, tags,
		run_untagged, locked, protected, paused, maximum_timeout_s, user_ids, group_ids, token_hash, token_expires_at,
		created_by, created_at, revision, published)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, true) RETURNING id`
	r.Revision = 1
	err := s.tx(ctx, func(tx pgx.Tx) error {
		if err := shareOpen(ctx, tx, Owner{OrganizationID: r.OrganizationID}); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, insert, runnerValues(r)...).Scan(&r.ID); err != nil {
			return fmt.Errorf("create a runner: %w", err)
		}
		return s.publish(ctx, tx, s.Encoder.Runner, r)
	})
	return r, err
}

// Update stores a runner that was read with the revision that it has, and returns it with the next one. Its id, type
// and creation stay. Faults: not_found, and conflict if it has changed meanwhile.
func (s Runners) Update(ctx context.Context, r runner.Runner) (runner.Runner, error) {
	const update = `UPDATE runners SET organization_id = $3, group_id = $4, project_ids = $5, description = $6,
		maintenance_note = $7, tags = $8, run_untagged = $9, locked = $10, protected = $11, paused = $12,
		maximum_timeout_s = $13, user_ids = $14, group_ids = $15, token_hash = $16, token_expires_at = $17,
		revision = revision + 1, published = true
		WHERE id = $1 AND revision = $2`
	values := runnerValues(r)
	args := append([]any{r.ID, r.Revision}, values[1:len(values)-3]...)
	err := s.tx(ctx, func(tx pgx.Tx) error {
		if err := shareOpen(ctx, tx, Owner{OrganizationID: r.OrganizationID}); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, update, args...)
		if err != nil {
			return fmt.Errorf("update runner %d: %w", r.ID, err)
		}
		if tag.RowsAffected() == 0 {
			return notUpdated(ctx, tx, r.ID)
		}
		r.Revision++
		return s.publish(ctx, tx, s.Encoder.Runner, r)
	})
	return r, err
}

// notUpdated returns why an update matched no row.
func notUpdated(ctx context.Context, tx pgx.Tx, id int64) error {
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM runners WHERE id = $1)`, id).Scan(&exists); err != nil {
		return fmt.Errorf("read runner %d: %w", id, err)
	}
	if !exists {
		return errNoRunner(id)
	}
	return fault.New(errcode.Conflict, "runner %d has changed meanwhile: read it again", id)
}

func errNoRunner(id int64) error {
	return fault.Wrap(runner.ErrNoRunner, errcode.NotFound, "runner %d does not exist", id)
}

// Delete removes the runner and its managers. Fault not_found.
func (s Runners) Delete(ctx context.Context, id int64) error {
	return s.tx(ctx, func(tx pgx.Tx) error {
		if err := shareOpen(ctx, tx, Owner{RunnerID: id}); err != nil {
			return err
		}
		deleted, err := collect(ctx, tx, "a deleted runner", scanRunner,
			`DELETE FROM runners WHERE id = $1 RETURNING `+runnerColumns, id)
		if err != nil {
			return err
		}
		if len(deleted) == 0 {
			return errNoRunner(id)
		}
		return s.publish(ctx, tx, s.Encoder.RunnerDeleted, deleted...)
	})
}

// publish publishes runners that were stored or deleted, and notifies all replicas.
func (s Runners) publish(
	ctx context.Context, tx pgx.Tx, encode func(context.Context, runner.Runner, time.Time) (*nats.Msg, error),
	runners ...runner.Runner,
) error {
	messages, ids := make([]*nats.Msg, len(runners)), make([]int64, len(runners))
	for i, r := range runners {
		var err error
		if messages[i], err = encode(ctx, r, s.Now()); err != nil {
			return err
		}
		ids[i] = r.ID
	}
	if err := outbox.Insert(ctx, tx, messages...); err != nil {
		return fmt.Errorf("publish %d runners: %w", len(runners), err)
	}
	const notify = `SELECT pg_notify($1, id::text) FROM unnest($2::bigint[]) AS id`
	if _, err := tx.Exec(ctx, notify, RunnerChannel, ids); err != nil {
		return fmt.Errorf("notify replicas of %d runners: %w", len(runners), err)
	}
	return nil
}

// PublishNew publishes the runners that the stream does not have: those of the time before it.
func (s Runners) PublishNew(ctx context.Context) error {
	return s.tx(ctx, func(tx pgx.Tx) error {
		return s.publishNew(ctx, tx)
	})
}

func (s Runners) publishNew(ctx context.Context, tx pgx.Tx) error {
	return s.publishAll(ctx, tx, `UPDATE runners SET published = true WHERE NOT published RETURNING `+runnerColumns)
}

// PublishAll publishes all runners again.
func (s Runners) PublishAll(ctx context.Context, tx pgx.Tx) error {
	return s.publishAll(ctx, tx, `SELECT `+runnerColumns+` FROM runners ORDER BY id FOR SHARE`)
}

func (s Runners) publishAll(ctx context.Context, tx pgx.Tx, read string) error {
	found, err := collect(ctx, tx, "runners", scanRunner, read)
	if err != nil {
		return err
	}
	return s.publish(ctx, tx, s.Encoder.Runner, found...)
}

func (s Runners) tx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return postgres.Unavailable(ctx, postgres.InTx(ctx, s.Pool, fn))
}

// Runners implements [runner.Store].
func (s Runners) Runners(ctx context.Context) ([]runner.Runner, error) { return s.runners(ctx, `true`) }

// RunnersByID implements [runner.Store].
func (s Runners) RunnersByID(ctx context.Context, ids ...int64) ([]runner.Runner, error) {
	return s.runners(ctx, `id = ANY ($1)`, ids)
}

func (s Runners) runners(ctx context.Context, condition string, args ...any) ([]runner.Runner, error) {
	return collect(ctx, s.Pool, "runners", scanRunner,
		`SELECT `+runnerColumns+` FROM runners WHERE `+condition+` ORDER BY id`, args...)
}

func collect[T any](
	ctx context.Context, db Querier, what string, scan pgx.RowToFunc[T], sql string, args ...any,
) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, postgres.Unavailable(ctx, fmt.Errorf("read %s: %w", what, err))
	}
	found, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, postgres.Unavailable(ctx, fmt.Errorf("read %s: %w", what, err))
	}
	return found, nil
}

// Read returns the runner as it is stored. Fault not_found.
func (s Runners) Read(ctx context.Context, id int64) (runner.Runner, error) {
	found, err := s.RunnersByID(ctx, id)
	if err != nil {
		return runner.Runner{}, err
	}
	if len(found) == 0 {
		return runner.Runner{}, errNoRunner(id)
	}
	return found[0], nil
}

// IDByToken implements [runner.Store].
func (s Runners) IDByToken(ctx context.Context, hash runner.TokenHash) (int64, error) {
	var id int64
	err := s.Pool.QueryRow(ctx, `SELECT id FROM runners WHERE token_hash = $1`, hash[:]).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, postgres.Unavailable(ctx, fmt.Errorf("find the runner of a token: %w", err))
	}
	return id, nil
}
