package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/directory"
)

// Directory stores organizations, groups, projects, users, memberships, agents and subscribers. Package admin
// publishes the changes. Errors for the API's callers are faults.
type Directory struct {
	// DB is a pool or a transaction; see Within.
	DB  Database
	Now func() time.Time
}

// Database is a pool of connections, or one transaction.
type Database interface {
	Querier
	postgres.Beginner
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Within returns a Directory that uses the transaction instead of the pool.
func (d *Directory) Within(tx pgx.Tx) *Directory {
	return &Directory{DB: tx, Now: d.Now}
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

// CreateOrganization creates an organization. It returns the fault already_exists if the name is in use.
func (d *Directory) CreateOrganization(
	ctx context.Context, tx pgx.Tx, o directory.Organization,
) (directory.Organization, error) {
	o = o.At(directory.ResidenceHere, "")
	err := tx.QueryRow(ctx, `insert into organizations (name) values ($1) returning id`, o.Name).Scan(&o.ID)
	return o, asFault(err, fmt.Sprintf("organization %q", o.Name), "")
}

// CreateGroup creates a group in an organization or in another group.
func (d *Directory) CreateGroup(ctx context.Context, tx pgx.Tx, g directory.Group) (directory.Group, error) {
	if g.ParentID != 0 {
		err := tx.QueryRow(ctx, `select organization_id from groups where id = $1`, g.ParentID).Scan(&g.OrganizationID)
		if err != nil {
			return g, asFault(err, "", fmt.Sprintf("group %d", g.ParentID))
		}
	}
	scope := directory.Scope{Kind: directory.ScopeOrganization, ID: g.OrganizationID}
	if err := lockChangeable(ctx, tx, scope); err != nil {
		return g, err
	}
	err := tx.QueryRow(ctx, `
		insert into groups (organization_id, parent_group_id, name) values ($1, nullif($2::bigint, 0), $3) returning id`,
		g.OrganizationID, g.ParentID, g.Name).Scan(&g.ID)
	return g, asFault(err, fmt.Sprintf("group %q", g.Name), fmt.Sprintf("organization %d", g.OrganizationID))
}

// CreateProject creates a project in a group.
func (d *Directory) CreateProject(
	ctx context.Context, tx pgx.Tx, groupID int64, name string,
) (directory.Project, error) {
	if err := lockChangeable(ctx, tx, directory.Scope{Kind: directory.ScopeGroup, ID: groupID}); err != nil {
		return directory.Project{}, err
	}
	var id int64
	err := tx.QueryRow(ctx, `
		insert into projects (organization_id, group_id, name) select organization_id, id, $2 from groups where id = $1
		returning id`, groupID, name).Scan(&id)
	if err != nil {
		return directory.Project{}, asFault(err, fmt.Sprintf("project %q", name), fmt.Sprintf("group %d", groupID))
	}
	return project(ctx, tx, id)
}

// projectPaths selects every project with its path.
const projectPaths = `
	with recursive paths as (
		select g.id, o.name || '/' || g.name as path from groups g join organizations o on o.id = g.organization_id
			where g.parent_group_id is null
		union all
		select g.id, p.path || '/' || g.name from groups g join paths p on p.id = g.parent_group_id
	)
	select p.id, p.organization_id, p.group_id, p.name, paths.path || '/' || p.name from projects p
		join paths on paths.id = p.group_id`

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

// CreateUser creates a user. It returns the fault already_exists if the name is in use.
func (d *Directory) CreateUser(ctx context.Context, tx pgx.Tx, u directory.User) (directory.User, error) {
	err := tx.QueryRow(ctx, `insert into users (username, admin, entry_version) values ($1, $2, $3) returning id`,
		u.Username, u.Admin, directory.UserEntryVersion).Scan(&u.ID)
	return u, asFault(err, fmt.Sprintf("user %q", u.Username), "")
}

// revokedSince is the time after which a revoked token is in the entry of its user.
func (d *Directory) revokedSince() time.Time { return d.Now().Add(-access.RevocationPeriod) }

// AccessChannel is the NOTIFY channel with the id of each user who lost a token, a role or all access, or got a role.
const AccessChannel = "access"

// lockUser locks a user and with it its memberships.
func lockUser(ctx context.Context, tx pgx.Tx, id int64) error {
	var one int
	err := tx.QueryRow(ctx, `select 1 from users where id = $1 for update`, id).Scan(&one)
	return asFault(err, "", fmt.Sprintf("user %d", id))
}

// PutMembership sets the user's role in a scope.
func (d *Directory) PutMembership(ctx context.Context, tx pgx.Tx, m directory.Membership) error {
	if err := lockUser(ctx, tx, m.UserID); err != nil {
		return err
	}
	if err := lockChangeable(ctx, tx, m.Scope); err != nil {
		return err
	}
	var batch pgx.Batch
	queueMembership(&batch, m)
	return send(ctx, tx, &batch, "store membership")
}

func queueMembership(batch *pgx.Batch, m directory.Membership) {
	batch.Queue(`
		insert into memberships (user_id, scope, scope_id, role) values ($1, $2, $3, $4)
		on conflict (user_id, scope, scope_id) do update set role = excluded.role`,
		m.UserID, m.Scope.Kind, m.Scope.ID, m.Role)
	batch.Queue(`delete from ended_memberships where user_id = $1 and scope = $2 and scope_id = $3`,
		m.UserID, m.Scope.Kind, m.Scope.ID)
	batch.Queue(`select pg_notify($1, ($2::bigint)::text)`, AccessChannel, m.UserID)
}

// DeleteMembership removes the user's role in a scope and returns the removed membership. It returns the
// fault not_found if there is none.
func (d *Directory) DeleteMembership(
	ctx context.Context, tx pgx.Tx, userID int64, scope directory.Scope,
) (directory.Membership, error) {
	m := directory.Membership{UserID: userID, Scope: scope}
	if err := lockUser(ctx, tx, userID); err != nil {
		return m, err
	}
	if err := lockChangeable(ctx, tx, scope); err != nil {
		return m, err
	}
	err := tx.QueryRow(ctx, `select role from memberships where user_id = $1 and scope = $2 and scope_id = $3`,
		userID, scope.Kind, scope.ID).Scan(&m.Role)
	if err != nil {
		return m, asFault(err, "", fmt.Sprintf("membership of user %d in %s %d", userID, scope.Kind, scope.ID))
	}
	var batch pgx.Batch
	queueEnd(&batch, m)
	return m, send(ctx, tx, &batch, "delete membership")
}

func queueEnd(batch *pgx.Batch, m directory.Membership) {
	batch.Queue(`delete from memberships where user_id = $1 and scope = $2 and scope_id = $3`,
		m.UserID, m.Scope.Kind, m.Scope.ID)
	batch.Queue(`
		insert into ended_memberships (user_id, scope, scope_id, role) values ($1, $2, $3, $4)
		on conflict (user_id, scope, scope_id) do update set role = excluded.role`,
		m.UserID, m.Scope.Kind, m.Scope.ID, m.Role)
	batch.Queue(`select pg_notify($1, ($2::bigint)::text)`, AccessChannel, m.UserID)
}

// agentPeriod is the time in which the registration of an agent counts, even if the agent is revoked.
const agentPeriod = 24 * time.Hour

// checkAgents returns the fault resource_exhausted if the project may have no further agent. It locks the project:
// registrations in one project wait for each other.
func (d *Directory) checkAgents(ctx context.Context, tx pgx.Tx, project int64, limit int) error {
	var one, counted int
	if err := tx.QueryRow(ctx, `select 1 from projects where id = $1 for no key update`, project).Scan(&one); err != nil {
		return asFault(err, "", fmt.Sprintf("project %d", project))
	}
	if err := lockChangeable(ctx, tx, directory.Scope{Kind: directory.ScopeProject, ID: project}); err != nil {
		return err
	}
	err := tx.QueryRow(ctx, `
		select count(*) from agents where project_id = $1 and (revoked_at is null or created_at > $2)`,
		project, d.Now().Add(-agentPeriod)).Scan(&counted)
	if err != nil {
		return fmt.Errorf("count the agents of project %d: %w", project, err)
	}
	if counted >= limit {
		return fault.New(errcode.ResourceExhausted,
			"project %d has %d agents, the maximum: revoke one that is not needed (lockstep agent list, agent revoke); "+
				"one that was registered within the last %s still counts", project, counted, agentPeriod)
	}
	return nil
}

// RegisterAgent creates an agent with the configuration of the cell in a project. The project may have at most limit
// agents.
func (d *Directory) RegisterAgent(ctx context.Context, tx pgx.Tx, a agent.Agent, limit int) (agent.Agent, error) {
	if err := d.checkAgents(ctx, tx, a.ProjectID, limit); err != nil {
		return a, err
	}
	var settings agent.Settings
	err := tx.QueryRow(ctx, `
		insert into agents (project_id, name, token_hash, curve_public_key, created_at, entry_form)
			values ($1, $2, $3, $4, $5, $6) returning id, created_at, `+configurationColumn+`, configuration_revision`,
		a.ProjectID, a.Name, a.TokenHash, a.CurvePublicKey, d.Now(), agent.EntryVersion,
	).Scan(&a.ID, &a.CreatedAt, &settings, &a.ConfigurationRevision)
	a.Configuration = settings.Configuration()
	exists := fmt.Sprintf("an agent %q of this project", a.Name)
	return a, asFault(err, exists, fmt.Sprintf("project %d", a.ProjectID))
}

// RevokeAgent revokes an agent's credentials permanently.
func (d *Directory) RevokeAgent(ctx context.Context, tx pgx.Tx, id int64) (agent.Agent, error) {
	rows, err := tx.Query(ctx, `
		update agents set revoked_at = coalesce(revoked_at, $2) where id = $1 returning `+agentColumns, id, d.Now())
	if err != nil {
		return agent.Agent{}, fmt.Errorf("revoke agent %d: %w", id, err)
	}
	a, err := pgx.CollectExactlyOneRow(rows, scanAgent)
	return a, asFault(err, "", fmt.Sprintf("agent %d", id))
}
