package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/directory"
)

// list returns every row of a query.
func list[T any](
	ctx context.Context,
	d *Directory,
	what string,
	scan pgx.RowToFunc[T],
	query string,
	args ...any,
) ([]T, error) {
	rows, err := d.DB.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", what, err)
	}
	out, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", what, err)
	}
	return out, nil
}

// one returns exactly one row. If there is no row, it returns the fault not_found. missing names the row in the
// message.
func one[T any](
	ctx context.Context,
	d *Directory,
	missing string,
	scan pgx.RowToFunc[T],
	query string,
	args ...any,
) (T, error) {
	rows, err := d.DB.Query(ctx, query, args...)
	if err != nil {
		var none T
		return none, fmt.Errorf("read %s: %w", missing, err)
	}
	out, err := pgx.CollectExactlyOneRow(rows, scan)
	return out, asFault(err, "", missing)
}

const agentColumns = `id, project_id, name, curve_public_key, created_at, last_seen_at, coalesce(cluster_uid, ''),
	clock_offset_ms, objects, revoked_at is not null, token_hash, previous_token_hash, previous_token_valid_until,
	` + cellSettings + `, configuration, configuration_revision`

func scanAgent(row pgx.CollectableRow) (agent.Agent, error) {
	var a agent.Agent
	var lastSeen, previousUntil *time.Time
	var layers agent.Layers
	var clockOffset int64
	err := row.Scan(
		&a.ID,
		&a.ProjectID,
		&a.Name,
		&a.CurvePublicKey,
		&a.CreatedAt,
		&lastSeen,
		&a.ClusterUID,
		&clockOffset,
		&a.Objects,
		&a.Revoked,
		&a.TokenHash,
		&a.PreviousTokenHash,
		&previousUntil,
		&layers.Cell,
		&layers.Agent,
		&a.ConfigurationRevision,
	)
	a.Configuration, a.OwnSettings = layers.Configuration(), layers.Agent.Names()
	a.ClockOffset = time.Duration(clockOffset) * time.Millisecond
	a.LastSeenAt, a.PreviousTokenValidUntil = fromNullable(lastSeen), fromNullable(previousUntil).UTC()
	return a, err //nolint:wrapcheck // the caller wraps it
}

func scanUser(row pgx.CollectableRow) (directory.User, error) {
	var u directory.User
	err := row.Scan(&u.ID, &u.Username, &u.Admin, &u.Blocked)
	return u, err //nolint:wrapcheck // the caller wraps it
}

// userEntryColumns are those of a user with the tokens that were revoked after $1. The limit bounds the entry.
const userEntryColumns = `users.id, users.username, users.admin, users.state = 'blocked', array(
		select t.id from personal_access_tokens t where t.user_id = users.id and t.revoked_at > $1
			order by t.revoked_at desc, t.id desc limit 1000)`

func scanUserEntry(row pgx.CollectableRow) (directory.User, error) {
	var u directory.User
	err := row.Scan(&u.ID, &u.Username, &u.Admin, &u.Blocked, &u.RevokedTokens)
	return u, err //nolint:wrapcheck // the caller wraps it
}

func scanGroup(row pgx.CollectableRow) (directory.Group, error) {
	var g directory.Group
	err := row.Scan(&g.ID, &g.OrganizationID, &g.ParentID, &g.Name)
	return g, err //nolint:wrapcheck // the caller wraps it
}

func scanMembership(row pgx.CollectableRow) (directory.Membership, error) {
	var m directory.Membership
	err := row.Scan(&m.UserID, &m.Scope.Kind, &m.Scope.ID, &m.Role)
	return m, err //nolint:wrapcheck // the caller wraps it
}

// UserByToken returns the user of a valid token, and the token's id, scope and expiry. The user may be blocked. It
// updates the token's last use at most once a minute. It returns the fault not_found if the token is unknown, revoked
// or expired.
func (d *Directory) UserByToken(ctx context.Context, hash []byte) (directory.User, directory.Token, error) {
	now := d.Now()
	type found struct {
		user    directory.User
		token   directory.Token
		used    *time.Time
		expires *time.Time
	}
	f, err := one(ctx, d, "token", func(row pgx.CollectableRow) (found, error) {
		var f found
		err := row.Scan(
			&f.user.ID, &f.user.Username, &f.user.Admin, &f.user.Blocked, &f.token.ID, &f.token.Scope, &f.used, &f.expires,
		)
		f.token.UserID = f.user.ID
		return f, err //nolint:wrapcheck // the caller wraps it
	}, `
		select u.id, u.username, u.admin, u.state = 'blocked', t.id, t.scope, t.last_used_at, t.expires_at
		from personal_access_tokens t join users u on u.id = t.user_id
		where t.token_hash = $1 and t.revoked_at is null and (t.expires_at is null or t.expires_at > $2)`, hash, now)
	if err != nil {
		return directory.User{}, directory.Token{}, err
	}
	if f.used == nil || now.Sub(*f.used) > time.Minute {
		if _, err := d.DB.Exec(
			ctx,
			`update personal_access_tokens set last_used_at = $2 where id = $1`,
			f.token.ID,
			now,
		); err != nil {
			return directory.User{}, directory.Token{}, fmt.Errorf("update the last use of token %d: %w", f.token.ID, err)
		}
	}
	if f.expires != nil {
		f.token.ExpiresAt = *f.expires
	}
	return f.user, f.token, nil
}

// AgentByToken returns the agent with an id and the hash of a valid token, which may be the one before a rotation. It
// returns the fault not_found if the agent is unknown or revoked.
func (d *Directory) AgentByToken(ctx context.Context, id int64, hash []byte) (agent.Agent, error) {
	return one(
		ctx,
		d,
		"agent",
		scanAgent,
		`select `+agentColumns+` from agents where id = $1 and revoked_at is null
			and (token_hash = $2 or previous_token_hash = $2 and previous_token_valid_until > $3)`,
		id,
		hash,
		d.Now(),
	)
}

// Agent returns one agent.
func (d *Directory) Agent(ctx context.Context, id int64) (agent.Agent, error) {
	return one(ctx, d, fmt.Sprintf("agent %d", id), scanAgent, `select `+agentColumns+` from agents where id = $1`, id)
}

// Agents lists the agents of these projects; nil means every project.
func (d *Directory) Agents(ctx context.Context, projects []int64, page Page) ([]agent.Agent, error) {
	return list(ctx, d, "agents", scanAgent, `
		select `+agentColumns+` from agents where ($1::bigint[] is null or project_id = any($1)) and id > $2
			order by id limit $3`, projects, page.After, page.Size)
}

// Project returns one project.
func (d *Directory) Project(ctx context.Context, id int64) (directory.Project, error) {
	return one(ctx, d, fmt.Sprintf("project %d", id), scanProject, projectPaths+` where p.id = $1`, id)
}

// Projects lists the visible projects of a group. Group 0 means every group. visible nil means every project.
func (d *Directory) Projects(
	ctx context.Context,
	groupID int64,
	visible []int64,
	page Page,
) ([]directory.Project, error) {
	return list(ctx, d, "projects", scanProject, projectPaths+`
		where ($1 = 0 or p.group_id = $1) and ($2::bigint[] is null or p.id = any($2)) and p.id > $3
			order by p.id limit $4`, groupID, visible, page.After, page.Size)
}

// Organizations lists the organizations in which the user has a role, or all for user 0.
func (d *Directory) Organizations(ctx context.Context, userID int64, page Page) ([]directory.Organization, error) {
	return list(ctx, d, "organizations", scanOrganization, `
		select `+organizationColumns+` from organizations o where ($1 = 0 or exists (
			select from memberships m where m.user_id = $1 and (
				m.scope = 'organization' and m.scope_id = o.id
				or m.scope = 'group' and m.scope_id in (select id from groups where organization_id = o.id)
				or m.scope = 'project' and m.scope_id in (select id from projects where organization_id = o.id))))
		and id > $2 order by id limit $3`, userID, page.After, page.Size)
}

// Groups lists the groups of an organization.
func (d *Directory) Groups(ctx context.Context, organizationID int64, page Page) ([]directory.Group, error) {
	return list(ctx, d, "groups", scanGroup, `
		select id, organization_id, coalesce(parent_group_id, 0), name from groups where organization_id = $1 and id > $2
			order by id limit $3`,
		organizationID, page.After, page.Size)
}

// Users lists users.
func (d *Directory) Users(ctx context.Context, page Page) ([]directory.User, error) {
	return list(
		ctx,
		d,
		"users",
		scanUser,
		`select id, username, admin, state = 'blocked' from users where id > $1 order by id limit $2`,
		page.After,
		page.Size,
	)
}

// User returns one user.
func (d *Directory) User(ctx context.Context, id int64) (directory.User, error) {
	return one(
		ctx, d, fmt.Sprintf("user %d", id), scanUser,
		`select id, username, admin, state = 'blocked' from users where id = $1`, id,
	)
}

// UserByName returns one user.
func (d *Directory) UserByName(ctx context.Context, username string) (directory.User, error) {
	return one(
		ctx,
		d,
		fmt.Sprintf("user %q", username),
		scanUser,
		`select id, username, admin, state = 'blocked' from users where username = $1`,
		username,
	)
}

// Memberships lists the memberships of a user. With user 0 it lists the memberships in the scope.
func (d *Directory) Memberships(
	ctx context.Context,
	userID int64,
	scope directory.Scope,
) ([]directory.Membership, error) {
	scan := func(row pgx.CollectableRow) (directory.Membership, error) {
		var m directory.Membership
		err := row.Scan(&m.UserID, &m.Scope.Kind, &m.Scope.ID, &m.Role, &m.Username)
		return m, err //nolint:wrapcheck // list wraps it
	}
	return list(ctx, d, "memberships", scan, `
		select m.user_id, m.scope, m.scope_id, m.role, u.username from memberships m join users u on u.id = m.user_id
		where ($1 <> 0 and m.user_id = $1) or ($1 = 0 and m.scope = $2 and m.scope_id = $3)
			order by m.user_id, m.scope, m.scope_id`, userID, scope.Kind, scope.ID)
}

// above selects the group of a scope and all groups above it, with their organization.
const above = `
	with recursive up as (
		select g.id, g.parent_group_id, g.organization_id from groups g
		where ($2 = 'group' and g.id = $3) or ($2 = 'project' and g.id = (select group_id from projects where id = $3))
		union all
		select g.id, g.parent_group_id, g.organization_id from groups g join up on g.id = up.parent_group_id
	)`

// Role returns the user's highest role in a scope, including inherited ones.
func (d *Directory) Role(ctx context.Context, userID int64, scope directory.Scope) (directory.Role, error) {
	roles, err := list(ctx, d, "roles", pgx.RowTo[directory.Role], above+`
		select role from memberships m where user_id = $1 and (
			(m.scope = $2 and m.scope_id = $3)
			or (m.scope = 'group' and m.scope_id in (select id from up))
			or (m.scope = 'organization' and m.scope_id in (select organization_id from up)))`, userID, scope.Kind, scope.ID)
	if err != nil {
		return directory.RoleNone, err
	}
	return directory.HighestRole(roles), nil
}

// VisibleProjects returns every project in which the user has a role.
func (d *Directory) VisibleProjects(ctx context.Context, userID int64) ([]int64, error) {
	out, err := list(ctx, d, "visible projects", pgx.RowTo[int64], `
		with recursive down as (
			select g.id from groups g join memberships m on m.user_id = $1
			and (m.scope = 'group' and m.scope_id = g.id or m.scope = 'organization' and m.scope_id = g.organization_id)
			union
			select g.id from groups g join down on g.parent_group_id = down.id
		)
		select id from projects where group_id in (select id from down)
			or id in (select scope_id from memberships where user_id = $1 and scope = 'project') order by id`, userID)
	if out == nil {
		out = []int64{}
	}
	return out, err
}

// ScopeExists returns the fault not_found if the organization, group or project does not exist.
func (d *Directory) ScopeExists(ctx context.Context, scope directory.Scope) error {
	_, err := one(ctx, d, fmt.Sprintf("%s %d", scope.Kind, scope.ID), pgx.RowTo[int64], `
		select id from organizations where $1 = 'organization' and id = $2
		union all select id from groups where $1 = 'group' and id = $2
		union all select id from projects where $1 = 'project' and id = $2`, scope.Kind, scope.ID)
	return err
}
