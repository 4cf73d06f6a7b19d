package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/agent"
)

// LockSettings locks an agent and returns its settings.
func (d *Directory) LockSettings(ctx context.Context, tx pgx.Tx, id int64) (agent.Settings, error) {
	var s agent.Settings
	err := tx.QueryRow(ctx, `select configuration from agents where id = $1 for no key update`, id).Scan(&s)
	return s, asFault(err, "", fmt.Sprintf("agent %d", id))
}

// SaveSettings stores the settings of a locked agent and raises its configuration revision by revisions.
func (d *Directory) SaveSettings(
	ctx context.Context, tx pgx.Tx, id int64, s agent.Settings, revisions int,
) (agent.Agent, error) {
	rows, err := tx.Query(ctx, `
		update agents set configuration = $2, configuration_revision = configuration_revision + $3
		where id = $1 returning `+agentColumns, id, s, revisions)
	if err != nil {
		return agent.Agent{}, fmt.Errorf("store the settings of agent %d: %w", id, err)
	}
	a, err := pgx.CollectExactlyOneRow(rows, scanAgent)
	if err != nil {
		return agent.Agent{}, fmt.Errorf("store the settings of agent %d: %w", id, err)
	}
	return a, nil
}

// RaiseConfigurations sets a higher configuration revision for every agent, because agents ignore lower
// revisions. Call it after the database was restored from an older backup.
func (d *Directory) RaiseConfigurations(ctx context.Context, tx pgx.Tx) error {
	// Revisions count changes by operators. The seconds since 1970 are above all of them.
	_, err := tx.Exec(ctx, `
		with locked as (select id from agents order by id for no key update)
		update agents a set configuration_revision = greatest(configuration_revision + 1, $1) from locked
			where locked.id = a.id`, d.Now().Unix())
	if err != nil {
		return fmt.Errorf("raise the revisions of configurations: %w", err)
	}
	return nil
}

// AgentConfigurations returns the configurations of the agents that exist.
func (d *Directory) AgentConfigurations(ctx context.Context, ids []int64) (map[int64]agent.Configuration, error) {
	rows, err := d.DB.Query(ctx, `select id, configuration from agents where id = any($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("read the configurations of %d agents: %w", len(ids), err)
	}
	found := make(map[int64]agent.Configuration, len(ids))
	var id int64
	var settings agent.Settings
	_, err = pgx.ForEachRow(rows, []any{&id, &settings}, func() error {
		found[id] = settings.Configuration()
		settings = agent.Settings{}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the configurations of %d agents: %w", len(ids), err)
	}
	return found, nil
}

// LastResyncs returns the last full resync of each of these agents.
func (d *Directory) LastResyncs(ctx context.Context, ids []int64) (map[int64]agent.Resync, error) {
	type row struct {
		agentID int64
		resync  agent.Resync
	}
	rows, err := list(ctx, d, "resyncs", func(r pgx.CollectableRow) (row, error) {
		var out row
		var ended *time.Time
		err := r.Scan(
			&out.agentID,
			&out.resync.ID,
			&out.resync.Cause,
			&out.resync.Nonce,
			&out.resync.Outcome,
			&out.resync.Count,
			&out.resync.BegunAt,
			&ended,
		)
		out.resync.EndedAt = fromNullable(ended)
		return out, err //nolint:wrapcheck // the caller wraps it
	}, `
		select distinct on (agent_id) agent_id, resync_id, cause, coalesce(nonce, ''), outcome, expected, begun_at, ended_at
		from resyncs where agent_id = any($1) order by agent_id, begun_at desc, resync_id desc`, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[int64]agent.Resync, len(rows))
	for _, r := range rows {
		found[r.agentID] = r.resync
	}
	return found, nil
}
