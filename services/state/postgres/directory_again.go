package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/signing"
)

// TellAgain puts the whole directory into the outbox, and with it what every agent is configured with, for streams that were restored from an older copy. Whoever keeps a copy takes the last word on each entry,
// so that telling one twice changes nothing.
func (d *Directory) TellAgain(ctx context.Context, tx pgx.Tx) error {
	type group struct{ id, organization, parent int64 }
	type project struct{ id, group, organization int64 }
	for _, tell := range []func() error{
		func() error {
			return again(ctx, tx, `select id from organizations order by id`, pgx.RowTo[int64], func(id int64) error {
				return d.tell(ctx, tx, "organization", key(id), events.DirectoryOrganization{OrganizationID: int(id)})
			})
		},
		func() error {
			return again(ctx, tx, `select id, organization_id, coalesce(parent_group_id, 0) from groups order by id`, func(row pgx.CollectableRow) (g group, err error) {
				err = row.Scan(&g.id, &g.organization, &g.parent)
				return g, err //nolint:wrapcheck // again says what it asked for
			}, func(g group) error {
				return d.tell(ctx, tx, "group", key(g.id), events.DirectoryGroup{GroupID: int(g.id), OrganizationID: int(g.organization), ParentGroupID: int(g.parent)})
			})
		},
		func() error {
			return again(ctx, tx, `select id, group_id, organization_id from projects order by id`, func(row pgx.CollectableRow) (p project, err error) {
				err = row.Scan(&p.id, &p.group, &p.organization)
				return p, err //nolint:wrapcheck // again says what it asked for
			}, func(p project) error {
				return d.tell(ctx, tx, "project", key(p.id), events.DirectoryProject{ProjectID: int(p.id), GroupID: int(p.group), OrganizationID: int(p.organization)})
			})
		},
		func() error {
			return again(ctx, tx, `select id, username, admin, state = 'blocked' from users order by id for no key update`, scanUser, func(u domain.User) error {
				return d.tellUser(ctx, tx, u)
			})
		},
		func() error {
			return again(ctx, tx, `select user_id, scope, scope_id, role from memberships order by user_id, scope, scope_id`, scanMembership, func(m domain.Membership) error {
				return d.tellMembership(ctx, tx, m, false)
			})
		},
		func() error {
			return again(ctx, tx, `select user_id, scope, scope_id, role from ended_memberships order by user_id, scope, scope_id`, scanMembership, func(m domain.Membership) error {
				return d.tellMembership(ctx, tx, m, true)
			})
		},
		func() error {
			return again(ctx, tx, `select `+agentColumns+` from agents order by id for no key update`, scanAgent, func(a domain.Agent) error {
				if err := d.tellAgent(ctx, tx, a); err != nil || a.Revoked {
					return err
				}
				return d.tellConfiguration(ctx, tx, a)
			})
		},
		func() error {
			return again(ctx, tx, `select `+signingKeyColumns+` from token_signing_keys order by id for no key update`, scanSigningKey, func(k signing.Key) error {
				return d.tellSigningKey(ctx, tx, k, false)
			})
		},
	} {
		if err := tell(); err != nil {
			return err
		}
	}
	return nil
}

// agentEntryForm numbers the forms that agents' entries have had: 0 has no token_hash. Raise it when what is told of agents that are there has more than before.
const agentEntryForm = 1

// TellAgentsAnew tells of every agent whose entry an earlier version of the service told in an earlier form, once.
func (d *Directory) TellAgentsAnew(ctx context.Context) error {
	return postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		var told []int64
		err := again(ctx, tx, fmt.Sprintf(`select %s from agents where entry_form < %d order by id for no key update`, agentColumns, agentEntryForm), scanAgent, func(a domain.Agent) error {
			told = append(told, a.ID)
			return d.tellAgent(ctx, tx, a)
		})
		if err != nil || len(told) == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, `update agents set entry_form = $2 where id = any($1)`, told, agentEntryForm); err != nil {
			return fmt.Errorf("remember which agents were told of: %w", err)
		}
		return nil
	})
}

func again[T any](ctx context.Context, tx pgx.Tx, query string, scan pgx.RowToFunc[T], tell func(T) error) error {
	rows, err := tx.Query(ctx, query)
	if err != nil {
		return fmt.Errorf("tell the directory again: %w", err)
	}
	found, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return fmt.Errorf("tell the directory again: %w", err)
	}
	for _, one := range found {
		if err := tell(one); err != nil {
			return err
		}
	}
	return nil
}
