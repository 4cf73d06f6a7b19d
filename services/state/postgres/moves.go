package postgres

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
)

const moveColumns = `move_id, organization_id, direction, other_cell, outcome, begun_at, ended_at, imported`

func scanMove(row pgx.CollectableRow) (move.Move, error) {
	var m move.Move
	var ended *time.Time
	err := row.Scan(&m.ID, &m.OrganizationID, &m.Direction, &m.OtherCell, &m.Outcome, &m.BegunAt, &ended, &m.Imported)
	m.EndedAt = fromNullable(ended)
	return m, err //nolint:wrapcheck // the caller wraps it
}

// ClaimMove stores a move that goes on, and returns true. If the cell knows its id already, it returns the known move
// and false. The move is locked.
func (d *Directory) ClaimMove(ctx context.Context, tx pgx.Tx, m move.Move) (move.Move, bool, error) {
	tag, err := tx.Exec(ctx, `
		insert into organization_moves (`+moveColumns+`) values ($1, $2, $3, $4, '', $5, null, $6)
		on conflict (move_id) do nothing`, m.ID, m.OrganizationID, m.Direction, m.OtherCell, m.BegunAt, m.Imported)
	if err != nil {
		return m, false, fmt.Errorf("store move %s: %w", m.ID, err)
	}
	known, err := d.LockMove(ctx, tx, m.ID)
	return known, tag.RowsAffected() > 0, err
}

// LockMove locks a move and returns it. It returns the fault not_found if the cell does not know it.
func (d *Directory) LockMove(ctx context.Context, tx pgx.Tx, id string) (move.Move, error) {
	return one(ctx, d.Within(tx), "move "+id, scanMove,
		`select `+moveColumns+` from organization_moves where move_id = $1 for update`, id)
}

// Move returns the latest move of an organization that began here. It returns the fault not_found if there is none.
func (d *Directory) Move(ctx context.Context, organizationID int64) (move.Move, error) {
	return one(ctx, d, fmt.Sprintf("a move of organization %d", organizationID), scanMove, `
		select `+moveColumns+` from organization_moves where organization_id = $1 and direction <> ''
		order by begun_at desc, move_id limit 1`, organizationID)
}

// SaveMove stores a locked move, and the entries of what its end has removed.
func (d *Directory) SaveMove(ctx context.Context, tx pgx.Tx, m move.Move, removed ...directory.Entry) error {
	if removed == nil {
		removed = []directory.Entry{}
	}
	_, err := tx.Exec(ctx, `
		update organization_moves set outcome = $2, ended_at = $3, imported = $4, removed = $5 where move_id = $1`,
		m.ID, m.Outcome, nullable(m.EndedAt), m.Imported, removed)
	if err != nil {
		return fmt.Errorf("store move %s: %w", m.ID, err)
	}
	return nil
}

// ContentsOf counts what a locked organization has that cannot move. A workspace that waits for the termination by a
// revoked agent does not count.
func (d *Directory) ContentsOf(ctx context.Context, tx pgx.Tx, organizationID int64) (move.Contents, error) {
	var c move.Contents
	err := tx.QueryRow(ctx, `
		with inside as (select id from projects where organization_id = $1)
		select (select count(*) from agents where project_id in (select id from inside) and revoked_at is null),
			(select count(*) from workspaces w join agents a on a.id = w.agent_id
				where w.project_id in (select id from inside) and w.actual_state <> 'terminated'
				and (w.desired_state <> 'terminated' or a.revoked_at is null))`, organizationID).Scan(&c.Agents, &c.Workspaces)
	if err != nil {
		return c, fmt.Errorf("count the agents and workspaces of organization %d: %w", organizationID, err)
	}
	return c, nil
}

// membersOf are the users with a role in the organization $1.
const membersOf = `select m.user_id from memberships m join ` + scopesOf + ` as inside using (scope, scope_id)`

// scopesOf are the organization $1, its groups and its projects.
const scopesOf = `(
	select 'organization' as scope, $1::bigint as scope_id
	union all select 'group', id from groups where organization_id = $1
	union all select 'project', id from projects where organization_id = $1)`

func scanMovedToken(row pgx.CollectableRow) (move.Token, error) {
	var t move.Token
	var expires *time.Time
	var hash []byte
	err := row.Scan(&t.ID, &t.UserID, &t.Name, &t.Scope, &t.CreatedBy, &t.CreatedAt, &expires, &t.Revoked, &hash)
	if err == nil && len(hash) != sha256.Size {
		err = fmt.Errorf("the hash of token %d has %d bytes", t.ID, len(hash))
	}
	if err == nil {
		t.Hash, t.ExpiresAt = [sha256.Size]byte(hash), fromNullable(expires)
	}
	return t, err
}

const movedTokenColumns = `t.id, t.user_id, t.name, t.scope, coalesce(t.created_by, 0), t.created_at, t.expires_at,
	t.revoked_at is not null, t.token_hash`

// Export returns the content of a locked organization. It has the tokens that are valid, but none of administrators. It
// also has tokens that were revoked since the organization came from another cell, which may know them.
func (d *Directory) Export(
	ctx context.Context, tx pgx.Tx, o directory.Organization,
) (c move.Content, err error) {
	d = d.Within(tx)
	c.Organization = directory.Organization{ID: o.ID, Name: o.Name}
	c.Groups, err = list(ctx, d, "groups to move", scanGroup, `
		with recursive down as (
			select id, organization_id, parent_group_id, name, 0 as depth from groups
				where organization_id = $1 and parent_group_id is null
			union all
			select g.id, g.organization_id, g.parent_group_id, g.name, depth + 1 from groups g
				join down on down.id = g.parent_group_id
		)
		select id, organization_id, coalesce(parent_group_id, 0), name from down order by depth, id`, o.ID)
	if err != nil {
		return c, err
	}
	c.Projects, err = list(ctx, d, "projects to move", scanProject,
		`select id, organization_id, group_id, name, '' from projects where organization_id = $1 order by id`, o.ID)
	if err != nil {
		return c, err
	}
	c.Users, err = list(ctx, d, "users to move", scanUser, `
		select id, username, false, state = 'blocked' from users where id in (
			`+membersOf+`) order by id`, o.ID)
	if err != nil {
		return c, err
	}
	if c.Memberships, err = d.membershipsIn(ctx, o.ID); err != nil {
		return c, err
	}
	c.Tokens, err = list(ctx, d, "tokens to move", scanMovedToken, `
		select `+movedTokenColumns+` from personal_access_tokens t join users u on u.id = t.user_id
		where not u.admin and t.user_id in (`+membersOf+`)
			and (t.expires_at is null or t.expires_at > $2)
			and (t.revoked_at is null or t.revoked_at > (
				select max(ended_at) from organization_moves
				where organization_id = $1 and direction = 'in' and outcome = 'moved'))
		order by t.id`, o.ID, d.Now())
	if err != nil {
		return c, err
	}
	c.Templates, err = list(ctx, d, "templates to move", scanTemplate, `
		select project_id, name, spec, updated_at from templates
		where project_id in (select id from projects where organization_id = $1) order by project_id, name`, o.ID)
	return c, err
}

// membershipsIn returns the memberships in an organization and in what is in it.
func (d *Directory) membershipsIn(ctx context.Context, organizationID int64) ([]directory.Membership, error) {
	return list(ctx, d, "memberships of an organization", scanMembership, `
		select m.user_id, m.scope, m.scope_id, m.role from memberships m join `+scopesOf+` as inside using (scope, scope_id)
		order by m.user_id, m.scope, m.scope_id`, organizationID)
}

// clockMargin is how much earlier than the begin of a move the clock of another replica may have put a revocation that
// the export does not have.
const clockMargin = 10 * time.Minute

// LockAccessChanges returns the tokens of members of an organization that were revoked since the begin of a move, and
// the blocked members. It waits for revocations that go on.
func (d *Directory) LockAccessChanges(ctx context.Context, tx pgx.Tx, m move.Move) (c move.AccessChanges, err error) {
	d = d.Within(tx)
	locked, err := list(ctx, d, "tokens of a move", pgx.RowTo[int64], `
		select id from personal_access_tokens
		where user_id in (`+membersOf+`)
			and (revoked_at is null or revoked_at > $2) order by id for share`,
		m.OrganizationID, m.BegunAt.Add(-clockMargin))
	if err != nil {
		return c, err
	}
	// A statement of its own: it sees what earlier holders of the locks committed.
	c.RevokedTokens, err = list(ctx, d, "revoked tokens of a move", pgx.RowTo[int64],
		`select id from personal_access_tokens where id = any($1) and revoked_at is not null order by id`, locked)
	if err != nil {
		return c, err
	}
	c.BlockedUsers, err = list(ctx, d, "blocked users of a move", pgx.RowTo[int64], `
		select id from users where state = 'blocked'
			and id in (`+membersOf+`) order by id`,
		m.OrganizationID)
	return c, err
}
