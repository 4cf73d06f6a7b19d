package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/postgres"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/signing"
)

// RepublishAll publishes every directory entry and agent configuration again, after a stream was restored
// from an older backup. Readers take the last entry of a key, so repeated entries change nothing.
func (d *Directory) RepublishAll(ctx context.Context, tx pgx.Tx) error {
	for _, republish := range []func() error{
		func() error {
			return forEach(ctx, tx, `select id from organizations order by id`, pgx.RowTo[int64], func(id int64) error {
				return d.publish(ctx, tx, directory.Organization{ID: id}.Entry())
			})
		},
		func() error {
			query := `select id, organization_id, coalesce(parent_group_id, 0), name from groups order by id`
			return forEach(ctx, tx, query, scanGroup, func(g directory.Group) error { return d.publish(ctx, tx, g.Entry()) })
		},
		func() error {
			query := projectPaths + ` order by p.id`
			return forEach(ctx, tx, query, scanProject, func(p directory.Project) error { return d.publish(ctx, tx, p.Entry()) })
		},
		func() error {
			query := `select id, username, admin, state = 'blocked' from users order by id for no key update`
			return forEach(ctx, tx, query, scanUser, func(u directory.User) error { return d.publish(ctx, tx, u.Entry()) })
		},
		func() error { return d.republishMemberships(ctx, tx, "memberships", false) },
		func() error { return d.republishMemberships(ctx, tx, "ended_memberships", true) },
		func() error {
			query := `select ` + agentColumns + ` from agents order by id for no key update`
			return forEach(ctx, tx, query, scanAgent, func(a agent.Agent) error {
				if err := d.publish(ctx, tx, a.Entry()); err != nil || a.Revoked {
					return err
				}
				return d.publishConfiguration(ctx, tx, a)
			})
		},
		func() error {
			query := `select ` + signingKeyColumns + ` from token_signing_keys order by id for no key update`
			return forEach(ctx, tx, query, scanSigningKey, func(k signing.Key) error { return d.publish(ctx, tx, k.Entry(false)) })
		},
	} {
		if err := republish(); err != nil {
			return fmt.Errorf("publish the directory again: %w", err)
		}
	}
	return nil
}

func (d *Directory) republishMemberships(ctx context.Context, tx pgx.Tx, table string, ended bool) error {
	query := `select user_id, scope, scope_id, role from ` + table + ` order by user_id, scope, scope_id`
	return forEach(
		ctx,
		tx,
		query,
		scanMembership,
		func(m directory.Membership) error { return d.publish(ctx, tx, m.Entry(ended)) },
	)
}

// UpgradeAgentEntries publishes the entries of agents again that an earlier version of the service published
// with fewer fields.
func (d *Directory) UpgradeAgentEntries(ctx context.Context) error {
	return postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		var upgraded []int64
		query := fmt.Sprintf(
			`select %s from agents where entry_form < %d order by id for no key update`,
			agentColumns,
			agent.EntryVersion,
		)
		err := forEach(ctx, tx, query, scanAgent, func(a agent.Agent) error {
			upgraded = append(upgraded, a.ID)
			return d.publish(ctx, tx, a.Entry())
		})
		if err != nil || len(upgraded) == 0 {
			return err
		}
		if _, err := tx.Exec(
			ctx,
			`update agents set entry_form = $2 where id = any($1)`,
			upgraded,
			agent.EntryVersion,
		); err != nil {
			return fmt.Errorf("store the entry version of %d agents: %w", len(upgraded), err)
		}
		return nil
	})
}

// forEach reads all rows of a query, and then calls do for each.
func forEach[T any](ctx context.Context, tx pgx.Tx, query string, scan pgx.RowToFunc[T], do func(T) error) error {
	rows, err := tx.Query(ctx, query)
	if err != nil {
		return fmt.Errorf("read rows: %w", err)
	}
	found, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return fmt.Errorf("read rows: %w", err)
	}
	for _, row := range found {
		if err := do(row); err != nil {
			return err
		}
	}
	return nil
}
