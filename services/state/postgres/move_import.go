package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/idrange"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/move"
)

// LockExisting locks and returns what the cell has of the content of an import. It locks tokens, then users, then the
// organization.
func (d *Directory) LockExisting(
	ctx context.Context, tx pgx.Tx, c move.Content, ids idrange.Range,
) (move.Existing, error) {
	d = d.Within(tx)
	e := move.Existing{IDs: ids, Outside: map[int64]bool{}}
	var err error
	if e.Tokens, err = d.lockTokensOf(ctx, tx, c.Tokens); err != nil {
		return e, err
	}
	users, usernames := make([]int64, len(c.Users)), make([]string, len(c.Users))
	for i, u := range c.Users {
		users[i], usernames[i] = u.ID, u.Username
	}
	found, err := list(ctx, d, "users of an import", scanUser, `
		select id, username, admin, state = 'blocked' from users where id = any($1) or username = any($2)
		order by id for update`, users, usernames)
	if err != nil {
		return e, err
	}
	e.Users = byID(found, func(u directory.User) int64 { return u.ID })
	organizations, err := list(ctx, d, "organizations of an import", scanOrganization, `
		select `+organizationColumns+` from organizations o where id = $1 or name = $2 order by id for no key update`,
		c.Organization.ID, c.Organization.Name)
	if err != nil {
		return e, err
	}
	for _, o := range organizations {
		if o.ID == c.Organization.ID {
			e.Organization = o
		} else {
			e.NameTaken = o.ID
		}
	}
	if err := d.existingPlaces(ctx, c, &e); err != nil {
		return e, err
	}
	if e.Memberships, err = d.membershipsIn(ctx, c.Organization.ID); err != nil {
		return e, err
	}
	outside, err := list(ctx, d, "users with roles outside an import", pgx.RowTo[int64], `
		select distinct user_id from memberships where user_id = any($2)
			and (scope, scope_id) not in (select scope, scope_id from `+scopesOf+` as inside)`, c.Organization.ID, users)
	for _, id := range outside {
		e.Outside[id] = true
	}
	return e, err
}

// lockTokensOf locks the tokens with the ids or the hashes of an import, and what descends from those that were revoked
// in the source.
func (d *Directory) lockTokensOf(
	ctx context.Context, tx pgx.Tx, tokens []move.Token,
) (map[int64]move.Token, error) {
	ids, hashes := make([]int64, len(tokens)), make([][]byte, len(tokens))
	var revoked []int64
	for i, t := range tokens {
		ids[i], hashes[i] = t.ID, t.Hash[:]
		if t.Revoked {
			revoked = append(revoked, t.ID)
		}
	}
	if len(revoked) > 0 {
		if _, err := lockDescendants(ctx, tx, 0, revoked, Spare{}, d.Now()); err != nil {
			return nil, err
		}
	}
	found, err := list(ctx, d, "tokens of an import", scanMovedToken, `
		select `+movedTokenColumns+` from personal_access_tokens t where id = any($1) or token_hash = any($2)
		order by id for no key update`, ids, hashes)
	return byID(found, func(t move.Token) int64 { return t.ID }), err
}

// existingPlaces reads the groups and projects of the organization, and those with the ids of the import.
func (d *Directory) existingPlaces(ctx context.Context, c move.Content, e *move.Existing) error {
	groupIDs, projectIDs := make([]int64, len(c.Groups)), make([]int64, len(c.Projects))
	for i, g := range c.Groups {
		groupIDs[i] = g.ID
	}
	for i, p := range c.Projects {
		projectIDs[i] = p.ID
	}
	groups, err := list(ctx, d, "groups of an import", scanGroup, `
		select id, organization_id, coalesce(parent_group_id, 0), name from groups
		where organization_id = $1 or id = any($2)`, c.Organization.ID, groupIDs)
	if err != nil {
		return err
	}
	projects, err := list(ctx, d, "projects of an import", scanProject, `
		select id, organization_id, group_id, name, '' from projects where organization_id = $1 or id = any($2)`,
		c.Organization.ID, projectIDs)
	e.Groups = byID(groups, func(g directory.Group) int64 { return g.ID })
	e.Projects = byID(projects, func(p directory.Project) int64 { return p.ID })
	return err
}

func byID[T any](entities []T, id func(T) int64) map[int64]T {
	out := make(map[int64]T, len(entities))
	for _, e := range entities {
		out[id(e)] = e
	}
	return out
}

// Import stores the plan of an import. It returns the revocations that are part of it, and the fault already_exists if
// somebody took a name in the meantime.
func (d *Directory) Import(ctx context.Context, tx pgx.Tx, p move.Plan) (Revocation, error) {
	o := p.Organization
	var batch pgx.Batch
	if p.Create {
		batch.Queue(`insert into organizations (id, name, residence, other_cell) values ($1, $2, $3, $4)`,
			o.ID, o.Name, o.Residence, o.OtherCell)
	} else {
		batch.Queue(`update organizations set residence = $2, other_cell = $3 where id = $1`, o.ID, o.Residence, o.OtherCell)
	}
	for _, g := range p.Groups {
		batch.Queue(`
			insert into groups (id, organization_id, parent_group_id, name) values ($1, $2, nullif($3::bigint, 0), $4)`,
			g.ID, g.OrganizationID, g.ParentID, g.Name)
	}
	for _, g := range p.Projects {
		batch.Queue(`insert into projects (id, organization_id, group_id, name) values ($1, $2, $3, $4)`,
			g.ID, g.OrganizationID, g.GroupID, g.Name)
	}
	for _, u := range p.Users {
		batch.Queue(`
			insert into users (id, username, state, entry_version)
			values ($1, $2, case when $3 then 'blocked' else 'active' end, $4)`,
			u.ID, u.Username, u.Blocked, directory.UserEntryVersion)
	}
	for _, m := range p.Memberships {
		queueMembership(&batch, m)
	}
	for _, m := range p.Ended {
		queueEnd(&batch, m)
	}
	for _, t := range p.Tokens {
		batch.Queue(`
			insert into personal_access_tokens (id, user_id, name, scope, token_hash, created_at, expires_at)
			values ($1, $2, $3, $4, $5, $6, $7)`,
			t.ID, t.UserID, t.Name, t.Scope, t.Hash[:], t.CreatedAt, nullable(t.ExpiresAt))
	}
	for _, t := range p.Tokens {
		if t.CreatedBy != 0 { // a creator may come after what it created
			batch.Queue(`update personal_access_tokens set created_by = $2 where id = $1`, t.ID, t.CreatedBy)
		}
	}
	for _, t := range p.Templates {
		queueTemplate(&batch, t)
	}
	if err := send(ctx, tx, &batch, "import an organization"); err != nil {
		return Revocation{}, asFault(err, fmt.Sprintf("a name or a token of organization %s (%d)", o.Name, o.ID),
			fmt.Sprintf("a part of organization %s (%d)", o.Name, o.ID))
	}
	return d.RevokeTokens(ctx, tx, p.RevokedTokens)
}

// RevokeTokens revokes tokens, with all that descend from them.
func (d *Directory) RevokeTokens(ctx context.Context, tx pgx.Tx, ids []int64) (Revocation, error) {
	if len(ids) == 0 {
		return Revocation{}, nil
	}
	tokens, err := lockDescendants(ctx, tx, 0, ids, Spare{}, d.Now())
	if err != nil {
		return Revocation{}, err
	}
	revoked, err := d.revoke(ctx, tx, tokens, 0)
	if err != nil {
		return Revocation{}, err
	}
	users := owners(revoked)
	if err := lockUsers(ctx, tx, users); err != nil {
		return Revocation{}, err
	}
	return d.revocation(ctx, tx, revoked, users)
}

// LockImported locks what an import created, except groups and projects: tokens, then users.
func (d *Directory) LockImported(ctx context.Context, tx pgx.Tx, i move.Imported) error {
	_, err := tx.Exec(ctx, `
		select from personal_access_tokens where id = any($1) or user_id = any($2) order by id for update`,
		i.CreatedTokens, i.Users)
	if err != nil {
		return fmt.Errorf("lock the tokens of an import: %w", err)
	}
	users := slices.Clone(i.Users)
	for _, m := range i.Memberships {
		users = append(users, m.UserID)
	}
	return lockUsers(ctx, tx, users)
}

// RemoveImported deletes what an import created, and returns the entries of what it deleted. It keeps a user that
// somebody gave a role outside the organization, with its tokens. Call LockImported first.
func (d *Directory) RemoveImported(
	ctx context.Context, tx pgx.Tx, m move.Move,
) (entries []directory.Entry, err error) {
	i := m.Imported
	var batch pgx.Batch
	for _, m := range i.Memberships {
		batch.Queue(`delete from memberships where user_id = $1 and scope = $2 and scope_id = $3`,
			m.UserID, m.Scope.Kind, m.Scope.ID)
		entries = append(entries, m.Entry(true))
	}
	batch.Queue(`delete from templates where project_id = any($1)`, i.Projects)
	if err := send(ctx, tx, &batch, "remove imported memberships and templates"); err != nil {
		return nil, err
	}
	users, err := d.removeUsers(ctx, tx, i)
	if err != nil {
		return nil, err
	}
	for _, u := range users {
		entries = append(entries, u.Removed())
	}
	projects, err := collect(ctx, tx, `
		delete from projects where id = any($1) returning id, organization_id, group_id, name, ''`,
		scanProject, directory.Project.Removed, i.Projects)
	if err != nil {
		return nil, err
	}
	groups, err := collect(ctx, tx, `
		delete from groups where id = any($1) returning id, organization_id, coalesce(parent_group_id, 0), name`,
		scanGroup, directory.Group.Removed, i.Groups)
	if err != nil {
		return nil, err
	}
	entries = slices.Concat(entries, projects, groups)
	if !m.RemovesOrganization() {
		return entries, nil
	}
	organizations, err := collect(ctx, tx, `delete from organizations o where id = $1 returning `+organizationColumns,
		scanOrganization, directory.Organization.Removed, m.OrganizationID)
	return append(entries, organizations...), err
}

// removeUsers deletes the users that an import created and nobody uses, and the tokens that it created of users that
// were there before.
func (d *Directory) removeUsers(ctx context.Context, tx pgx.Tx, i move.Imported) ([]directory.User, error) {
	unused, err := list(ctx, d.Within(tx), "imported users", pgx.RowTo[int64], `
		select id from users u where id = any($1) and not admin
			and not exists (select from memberships where user_id = u.id)
			and not exists (select from workspaces where user_id = u.id)
			and not exists (select from subscribers where user_id = u.id)
			and not exists (select from orphans where user_id = u.id)`, i.Users)
	if err != nil {
		return nil, err
	}
	tokens, err := list(ctx, d.Within(tx), "imported tokens", pgx.RowTo[int64], `
		select id from personal_access_tokens
		where user_id = any($1) or id = any($2) and user_id <> all($3)`, unused, i.CreatedTokens, i.Users)
	if err != nil {
		return nil, err
	}
	var batch pgx.Batch
	batch.Queue(`update personal_access_tokens set created_by = null where created_by = any($1)`, tokens)
	batch.Queue(`delete from personal_access_tokens where id = any($1)`, tokens)
	batch.Queue(`delete from ended_memberships where user_id = any($1)`, unused)
	if err := send(ctx, tx, &batch, "remove imported tokens"); err != nil {
		return nil, err
	}
	return list(ctx, d.Within(tx), "removed users", scanUser,
		`delete from users where id = any($1) returning id, username, admin, state = 'blocked'`, unused)
}
