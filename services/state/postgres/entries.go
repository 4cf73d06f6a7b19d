package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/signingkey"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/signing"
)

// LockEntries returns the entries of the whole directory. It locks those that can change.
func (d *Directory) LockEntries(ctx context.Context, tx pgx.Tx) ([]directory.Entry, error) {
	var entries []directory.Entry
	for _, read := range []func() ([]directory.Entry, error){
		// First: an entity that came again later is published after its removal.
		func() ([]directory.Entry, error) { return d.removedEntries(ctx, tx) },
		func() ([]directory.Entry, error) {
			query := `select ` + organizationColumns + ` from organizations o order by id`
			return collect(ctx, tx, query, scanOrganization, directory.Organization.Entry)
		},
		func() ([]directory.Entry, error) {
			query := `select id, organization_id, coalesce(parent_group_id, 0), name from groups order by id`
			return collect(ctx, tx, query, scanGroup, directory.Group.Entry)
		},
		func() ([]directory.Entry, error) {
			return collect(ctx, tx, projectPaths+` order by p.id`, scanProject, directory.Project.Entry)
		},
		func() ([]directory.Entry, error) {
			query := `select ` + userEntryColumns + ` from users order by id for no key update of users`
			return collect(ctx, tx, query, scanUserEntry, directory.User.Entry, d.revokedSince())
		},
		func() ([]directory.Entry, error) {
			return collect(ctx, tx, membershipsOf("memberships"), scanMembership,
				func(m directory.Membership) directory.Entry { return m.Entry(false) })
		},
		func() ([]directory.Entry, error) {
			return collect(ctx, tx, membershipsOf("ended_memberships"), scanMembership,
				func(m directory.Membership) directory.Entry { return m.Entry(true) })
		},
		func() ([]directory.Entry, error) {
			query := `select ` + agentColumns + ` from agents order by id for no key update`
			return collect(ctx, tx, query, scanAgent, agent.Agent.Entry)
		},
		func() ([]directory.Entry, error) {
			query := `select ` + signingKeyColumns + ` from token_signing_keys order by id for no key update`
			return collect(ctx, tx, query, scanSigningKey, func(k signingkey.Key) directory.Entry {
				return signing.Entry(k, false)
			})
		},
	} {
		more, err := read()
		if err != nil {
			return nil, err
		}
		entries = append(entries, more...)
	}
	return entries, nil
}

// removedEntries returns the entries of what canceled moves have removed.
func (d *Directory) removedEntries(ctx context.Context, tx pgx.Tx) ([]directory.Entry, error) {
	moves, err := collect(ctx, tx, `
		select removed from organization_moves where removed <> '[]' order by ended_at, move_id`,
		pgx.RowTo[[]removedEntry], func(m []removedEntry) []removedEntry { return m })
	var entries []directory.Entry
	for _, e := range slices.Concat(moves...) {
		entries = append(entries, directory.Entry{Kind: e.Kind, Key: e.Key, Data: e.Data})
	}
	return entries, err
}

// removedEntry is a stored [directory.Entry]: its data is not decoded.
type removedEntry struct {
	Kind, Key string
	Data      json.RawMessage
}

func membershipsOf(table string) string {
	return `select user_id, scope, scope_id, role from ` + table + ` order by user_id, scope, scope_id`
}

// LockActiveAgents locks the agents that are not revoked and returns them.
func (d *Directory) LockActiveAgents(ctx context.Context, tx pgx.Tx) ([]agent.Agent, error) {
	query := `select ` + agentColumns + ` from agents where revoked_at is null order by id for no key update`
	return collect(ctx, tx, query, scanAgent, func(a agent.Agent) agent.Agent { return a })
}

// UpgradeAgentEntries records that all agents have an entry of the current version, and returns the agents that
// had an older one.
func (d *Directory) UpgradeAgentEntries(ctx context.Context, tx pgx.Tx) ([]agent.Agent, error) {
	query := fmt.Sprintf(`select %s from agents where entry_form < %d order by id for no key update`,
		agentColumns, agent.EntryVersion)
	old, err := collect(ctx, tx, query, scanAgent, func(a agent.Agent) agent.Agent { return a })
	if err != nil || len(old) == 0 {
		return nil, err
	}
	ids := make([]int64, len(old))
	for i, a := range old {
		ids[i] = a.ID
	}
	_, err = tx.Exec(ctx, `update agents set entry_form = $2 where id = any($1)`, ids, agent.EntryVersion)
	if err != nil {
		return nil, fmt.Errorf("store the entry version of %d agents: %w", len(ids), err)
	}
	return old, nil
}

// UpgradeUserEntries records that all users have an entry of the current version, and returns the users that had an
// older one.
func (d *Directory) UpgradeUserEntries(ctx context.Context, tx pgx.Tx) ([]directory.User, error) {
	query := fmt.Sprintf(`select %s from users where entry_version < %d order by id for no key update of users`,
		userEntryColumns, directory.UserEntryVersion)
	same := func(u directory.User) directory.User { return u }
	old, err := collect(ctx, tx, query, scanUserEntry, same, d.revokedSince())
	if err != nil || len(old) == 0 {
		return nil, err
	}
	ids := make([]int64, len(old))
	for i, u := range old {
		ids[i] = u.ID
	}
	_, err = tx.Exec(ctx, `update users set entry_version = $2 where id = any($1)`, ids, directory.UserEntryVersion)
	if err != nil {
		return nil, fmt.Errorf("store the entry version of %d users: %w", len(ids), err)
	}
	return old, nil
}

// collect reads the rows of a query and converts each.
func collect[Row, T any](
	ctx context.Context, tx pgx.Tx, query string, scan pgx.RowToFunc[Row], convert func(Row) T, args ...any,
) ([]T, error) {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the directory: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (T, error) {
		found, err := scan(row)
		return convert(found), err
	})
	if err != nil {
		return nil, fmt.Errorf("read the directory: %w", err)
	}
	return out, nil
}
