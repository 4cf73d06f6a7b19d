package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/publish"
)

// Directory stores who exists and which role they have. Every change publishes its entry in the same
// transaction. Errors for the API's callers are faults.
type Directory struct {
	// DB is a pool or a transaction; see Within.
	DB      Database
	Encoder publish.Encoder
	Now     func() time.Time
}

// Database is a pool of connections, or one transaction.
type Database interface {
	Querier
	postgres.Beginner
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Within returns the directory within a transaction, which needs no second connection.
func (d *Directory) Within(tx pgx.Tx) *Directory {
	return &Directory{DB: tx, Encoder: d.Encoder, Now: d.Now}
}

// Page asks for one page of a list ordered by id. After is the last id of the page before.
type Page struct {
	After int64
	Size  int
}

// PostgreSQL error codes.
const (
	uniqueViolation     = "23505"
	foreignKeyViolation = "23503"
)

// asFault maps a violated constraint, or a missing row, to a fault.
func asFault(err error, exists, missing string) error {
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return fault.Wrap(err, errcode.NotFound, "%s does not exist", missing)
	case errors.As(err, &pgErr) && pgErr.Code == uniqueViolation:
		return fault.Wrap(err, errcode.AlreadyExists, "%s exists already", exists)
	case errors.As(err, &pgErr) && pgErr.Code == foreignKeyViolation:
		return fault.Wrap(err, errcode.NotFound, "%s does not exist", missing)
	default:
		return err
	}
}

// publish puts directory entries into the outbox.
func (d *Directory) publish(ctx context.Context, tx pgx.Tx, entries ...directory.Entry) error {
	messages := make([]*nats.Msg, len(entries))
	for i, entry := range entries {
		var err error
		if messages[i], err = d.Encoder.Entry(ctx, entry, d.Now()); err != nil {
			return err
		}
	}
	return insertMessages(ctx, tx, messages)
}

// CreateOrganization creates an organization. Fault already_exists: the name is in use.
func (d *Directory) CreateOrganization(ctx context.Context, name string) (directory.Organization, error) {
	o := directory.Organization{Name: name}
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `insert into organizations (name) values ($1) returning id`, name).
			Scan(&o.ID); err != nil {
			return asFault(err, fmt.Sprintf("organization %q", name), "")
		}
		return d.publish(ctx, tx, o.Entry())
	})
	return o, err
}

// CreateGroup creates a group in an organization or in another group.
func (d *Directory) CreateGroup(ctx context.Context, g directory.Group) (directory.Group, error) {
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		if g.ParentID != 0 {
			err := tx.QueryRow(ctx, `select organization_id from groups where id = $1`, g.ParentID).Scan(&g.OrganizationID)
			if err != nil {
				return asFault(err, "", fmt.Sprintf("group %d", g.ParentID))
			}
		}
		err := tx.QueryRow(ctx, `insert into groups (organization_id, parent_group_id, name) values ($1, nullif($2, 0), $3) returning id`,
			g.OrganizationID, g.ParentID, g.Name).
			Scan(&g.ID)
		if err != nil {
			return asFault(err, fmt.Sprintf("group %q", g.Name), fmt.Sprintf("organization %d", g.OrganizationID))
		}
		return d.publish(ctx, tx, g.Entry())
	})
	return g, err
}

// CreateProject creates a project in a group.
func (d *Directory) CreateProject(ctx context.Context, groupID int64, name string) (directory.Project, error) {
	var p directory.Project
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		var id int64
		err := tx.QueryRow(ctx, `insert into projects (organization_id, group_id, name) select organization_id, id, $2 from groups where id = $1 returning id`,
			groupID, name).
			Scan(&id)
		if err != nil {
			return asFault(err, fmt.Sprintf("project %q", name), fmt.Sprintf("group %d", groupID))
		}
		if p, err = project(ctx, tx, id); err != nil {
			return err
		}
		return d.publish(ctx, tx, p.Entry())
	})
	return p, err
}

// projectPaths selects every project with its path.
const projectPaths = `
	with recursive paths as (
		select g.id, o.name || '/' || g.name as path from groups g join organizations o on o.id = g.organization_id where g.parent_group_id is null
		union all
		select g.id, p.path || '/' || g.name from groups g join paths p on p.id = g.parent_group_id
	)
	select p.id, p.organization_id, p.group_id, p.name, paths.path || '/' || p.name from projects p join paths on paths.id = p.group_id`

func scanProject(row pgx.CollectableRow) (directory.Project, error) {
	var p directory.Project
	err := row.Scan(&p.ID, &p.OrganizationID, &p.GroupID, &p.Name, &p.Path)
	return p, err //nolint:wrapcheck // the caller wraps it
}

func project(ctx context.Context, tx pgx.Tx, id int64) (directory.Project, error) {
	rows, err := tx.Query(ctx, projectPaths+` where p.id = $1`, id)
	if err != nil {
		return directory.Project{}, fmt.Errorf("read project %d: %w", id, err)
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanProject)
	return p, asFault(err, "", fmt.Sprintf("project %d", id))
}

// CreateUser creates a user. Fault already_exists: the name is in use.
func (d *Directory) CreateUser(ctx context.Context, username string, admin bool) (directory.User, error) {
	u := directory.User{Username: username, Admin: admin}
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `insert into users (username, admin) values ($1, $2) returning id`, username, admin).
			Scan(&u.ID); err != nil {
			return asFault(err, fmt.Sprintf("user %q", username), "")
		}
		return d.publish(ctx, tx, u.Entry())
	})
	return u, err
}

// BlockUser denies the user everything from now on.
func (d *Directory) BlockUser(ctx context.Context, id int64) (directory.User, error) {
	u := directory.User{ID: id, Blocked: true}
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `update users set state = 'blocked' where id = $1 returning username, admin`, id).
			Scan(&u.Username, &u.Admin)
		if err != nil {
			return asFault(err, "", fmt.Sprintf("user %d", id))
		}
		return d.publish(ctx, tx, u.Entry())
	})
	return u, err
}

// PutMembership sets the user's role in a scope.
func (d *Directory) PutMembership(ctx context.Context, m directory.Membership) error {
	return postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		// The user's row locks its memberships.
		var one int
		if err := tx.QueryRow(ctx, `select 1 from users where id = $1 for update`, m.UserID).Scan(&one); err != nil {
			return asFault(err, "", fmt.Sprintf("user %d", m.UserID))
		}
		_, err := tx.Exec(ctx, `
			insert into memberships (user_id, scope, scope_id, role) values ($1, $2, $3, $4)
			on conflict (user_id, scope, scope_id) do update set role = excluded.role`, m.UserID, m.Scope.Kind, m.Scope.ID, m.Role)
		if err != nil {
			return fmt.Errorf("store membership: %w", err)
		}
		if _, err := tx.Exec(
			ctx,
			`delete from ended_memberships where user_id = $1 and scope = $2 and scope_id = $3`,
			m.UserID,
			m.Scope.Kind,
			m.Scope.ID,
		); err != nil {
			return fmt.Errorf("store membership: %w", err)
		}
		return d.publish(ctx, tx, m.Entry(false))
	})
}

// DeleteMembership removes the user's role in a scope. Fault not_found: there is none.
func (d *Directory) DeleteMembership(ctx context.Context, userID int64, scope directory.Scope) error {
	return postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		m := directory.Membership{UserID: userID, Scope: scope}
		var one int
		if err := tx.QueryRow(ctx, `select 1 from users where id = $1 for update`, userID).Scan(&one); err != nil {
			return asFault(err, "", fmt.Sprintf("user %d", userID))
		}
		err := tx.QueryRow(ctx, `delete from memberships where user_id = $1 and scope = $2 and scope_id = $3 returning role`,
			userID, scope.Kind, scope.ID).Scan(&m.Role)
		if err != nil {
			return asFault(err, "", fmt.Sprintf("membership of user %d in %s %d", userID, scope.Kind, scope.ID))
		}
		_, err = tx.Exec(ctx, `
			insert into ended_memberships (user_id, scope, scope_id, role) values ($1, $2, $3, $4)
			on conflict (user_id, scope, scope_id) do update set role = excluded.role`, userID, scope.Kind, scope.ID, m.Role)
		if err != nil {
			return fmt.Errorf("store the end of a membership: %w", err)
		}
		return d.publish(ctx, tx, m.Entry(true))
	})
}

// RegisterAgent creates an agent in a project and publishes its configuration.
func (d *Directory) RegisterAgent(ctx context.Context, a agent.Agent) (agent.Agent, error) {
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		err := tx.QueryRow(
			ctx,
			`
			insert into agents (project_id, name, token_hash, curve_public_key, created_at, entry_form) values ($1, $2, $3, $4, $5, $6) returning id, created_at, configuration_revision`,
			a.ProjectID,
			a.Name,
			a.TokenHash,
			a.CurvePublicKey,
			d.Now(),
			agent.EntryVersion,
		).Scan(&a.ID, &a.CreatedAt, &a.ConfigurationRevision)
		if err != nil {
			return asFault(
				err,
				fmt.Sprintf("agent %q in project %d", a.Name, a.ProjectID),
				fmt.Sprintf("project %d", a.ProjectID),
			)
		}
		a.Configuration = agent.DefaultConfiguration()
		if err := d.publish(ctx, tx, a.Entry()); err != nil {
			return err
		}
		return d.publishConfiguration(ctx, tx, a)
	})
	return a, err
}

// RevokeAgent revokes an agent's credentials permanently.
func (d *Directory) RevokeAgent(ctx context.Context, id int64) (agent.Agent, error) {
	var a agent.Agent
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		rows, err := tx.Query(
			ctx,
			`update agents set revoked_at = coalesce(revoked_at, $2) where id = $1 returning `+agentColumns,
			id,
			d.Now(),
		)
		if err != nil {
			return fmt.Errorf("revoke agent %d: %w", id, err)
		}
		if a, err = pgx.CollectExactlyOneRow(rows, scanAgent); err != nil {
			return asFault(err, "", fmt.Sprintf("agent %d", id))
		}
		return d.publish(ctx, tx, a.Entry())
	})
	return a, err
}

// idsPerCell is the size of a cell's id range: 2^40.
const idsPerCell = int64(1) << 40

// ReserveIDs moves the id sequence into the range of the cell. It refuses to move a sequence that is in
// use.
func (d *Directory) ReserveIDs(ctx context.Context, cell int64) error {
	return postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		first := cell*idsPerCell + 1
		var last int64
		var called bool
		if err := tx.QueryRow(ctx, `select last_value, is_called from ids`).Scan(&last, &called); err != nil {
			return fmt.Errorf("read the id sequence: %w", err)
		}
		if last >= first && last < first+idsPerCell {
			return nil
		}
		if called {
			return fmt.Errorf(
				"cell number %d starts with id %d, but this database uses ids up to %d: keep the old cell number",
				cell,
				first,
				last,
			)
		}
		if _, err := tx.Exec(ctx, `select setval('ids', $1, false)`, first); err != nil {
			return fmt.Errorf("reserve ids: %w", err)
		}
		return nil
	})
}
