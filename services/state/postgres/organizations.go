package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/directory"
)

const organizationColumns = `o.id, o.name, o.residence, o.other_cell`

func scanOrganization(row pgx.CollectableRow) (directory.Organization, error) {
	var o directory.Organization
	err := row.Scan(&o.ID, &o.Name, &o.Residence, &o.OtherCell)
	return o, err //nolint:wrapcheck // the caller wraps it
}

// organizationOf selects the id of the organization of a scope, by its kind $1 and its id $2.
const organizationOf = `
	select id from organizations where $1 = 'organization' and id = $2
	union all select organization_id from groups where $1 = 'group' and id = $2
	union all select organization_id from projects where $1 = 'project' and id = $2`

// lockChangeable locks the organization of a scope until the end of a change in it: the begin of a move waits, and so
// does its end. It returns the fault not_found if the scope does not exist, and that of
// [directory.Organization.Changeable].
func lockChangeable(ctx context.Context, tx pgx.Tx, scope directory.Scope) error {
	missing := fmt.Sprintf("%s %d", scope.Kind, scope.ID)
	rows, err := tx.Query(ctx, `
		select `+organizationColumns+` from organizations o where o.id = (`+organizationOf+`) for share`,
		string(scope.Kind), scope.ID)
	if err != nil {
		return fmt.Errorf("lock the organization of %s: %w", missing, err)
	}
	o, err := pgx.CollectExactlyOneRow(rows, scanOrganization)
	if err != nil {
		return asFault(err, "", missing)
	}
	return o.Changeable()
}

// lockMember locks the organizations in which a locked user has a role, and returns the fault organization_moving if
// one of them is leaving: what the user gets here would stay behind. Administrators are exempt, since their tokens do
// not move.
func lockMember(ctx context.Context, tx pgx.Tx, userID int64) error {
	organizations, err := collect(ctx, tx, `
		select `+organizationColumns+` from organizations o where o.id in (
			select m.scope_id from memberships m where m.user_id = $1 and m.scope = 'organization'
			union select g.organization_id from memberships m join groups g on g.id = m.scope_id
				where m.user_id = $1 and m.scope = 'group'
			union select p.organization_id from memberships m join projects p on p.id = m.scope_id
				where m.user_id = $1 and m.scope = 'project')
		and not exists (select from users where id = $1 and admin) order by o.id for share`,
		scanOrganization, func(o directory.Organization) directory.Organization { return o }, userID)
	if err != nil {
		return err
	}
	for _, o := range organizations {
		if o.Residence == directory.ResidenceLeaving {
			return o.Changeable()
		}
	}
	return nil
}

// LockOrganization locks an organization against changes in it, and returns it. It returns the fault not_found if it
// does not exist.
func (d *Directory) LockOrganization(ctx context.Context, tx pgx.Tx, id int64) (directory.Organization, error) {
	return one(ctx, d.Within(tx), fmt.Sprintf("organization %d", id), scanOrganization,
		`select `+organizationColumns+` from organizations o where id = $1 for no key update`, id)
}

// SaveResidence stores where a locked organization is.
func (d *Directory) SaveResidence(ctx context.Context, tx pgx.Tx, o directory.Organization) error {
	_, err := tx.Exec(ctx, `update organizations set residence = $2, other_cell = $3 where id = $1`,
		o.ID, o.Residence, o.OtherCell)
	if err != nil {
		return fmt.Errorf("store where organization %d is: %w", o.ID, err)
	}
	return nil
}
