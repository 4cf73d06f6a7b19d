package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/agent"
)

// cellSettings are the settings of the cell. There are none before the service has stored them.
const cellSettings = `coalesce((select settings from cell_settings), '{}')`

// configurationColumn is the configuration of an agent: the settings of the cell, overridden by its own.
const configurationColumn = cellSettings + ` || configuration`

// LockSettings locks the settings of the cell and of an agent and returns them. No workspace is created until the end
// of the transaction.
func (d *Directory) LockSettings(ctx context.Context, tx pgx.Tx, id int64) (agent.Layers, error) {
	if _, err := d.LockCellSettings(ctx, tx); err != nil {
		return agent.Layers{}, err
	}
	_, layers, err := readSettings(ctx, tx, id, ` for no key update`)
	return layers, err
}

// LockCellSettings locks the settings of the cell and returns them. No workspace is created until the end of the
// transaction.
func (d *Directory) LockCellSettings(ctx context.Context, tx pgx.Tx) (agent.Settings, error) {
	var s agent.Settings
	_, err := tx.Exec(ctx, `insert into cell_settings (settings) values ('{}') on conflict do nothing`)
	if err == nil {
		err = tx.QueryRow(ctx, `select settings from cell_settings for no key update`).Scan(&s)
	}
	if err != nil {
		return s, fmt.Errorf("lock the settings of the cell: %w", err)
	}
	return s, nil
}

// SaveCellSettings stores the settings of the cell. At the next ticks of agents their workspaces are recomputed.
func (d *Directory) SaveCellSettings(ctx context.Context, tx pgx.Tx, s agent.Settings) error {
	_, err := tx.Exec(ctx, `update cell_settings set settings = $1`, s)
	if err == nil {
		_, err = tx.Exec(ctx, `
			with locked as (select id from agents order by id for no key update)
			update agents a set considered_revision = -1 from locked where locked.id = a.id`)
	}
	if err != nil {
		return fmt.Errorf("store the settings of the cell: %w", err)
	}
	return nil
}

// HoldSettings prevents changes of the settings of the cell and of agents until the end of the transaction. Call it
// before locking agents or workspaces.
func (d *Directory) HoldSettings(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `select from cell_settings for share`); err != nil {
		return fmt.Errorf("lock the settings of the cell: %w", err)
	}
	return nil
}

// SettingsForCreation returns the name and the settings of an agent, and holds them, see HoldSettings.
func (d *Directory) SettingsForCreation(ctx context.Context, tx pgx.Tx, id int64) (string, agent.Layers, error) {
	if err := d.HoldSettings(ctx, tx); err != nil {
		return "", agent.Layers{}, err
	}
	return readSettings(ctx, tx, id, "")
}

// SettingsOf returns the name and the settings of an agent.
func (d *Directory) SettingsOf(ctx context.Context, tx pgx.Tx, id int64) (string, agent.Layers, error) {
	return readSettings(ctx, tx, id, "")
}

func readSettings(ctx context.Context, tx pgx.Tx, id int64, locking string) (string, agent.Layers, error) {
	var name string
	var l agent.Layers
	err := tx.QueryRow(ctx, `select name, `+cellSettings+`, configuration from agents where id = $1`+locking, id).
		Scan(&name, &l.Cell, &l.Agent)
	return name, l, asFault(err, "", fmt.Sprintf("agent %d", id))
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
	return agentConfigurations(ctx, d.DB, ids)
}

// AgentConfigurations implements ingest.WorkspaceStore.
func (s *IngestStore) AgentConfigurations(ctx context.Context, ids []int64) (map[int64]agent.Configuration, error) {
	return agentConfigurations(ctx, s.tx, ids)
}

func agentConfigurations(ctx context.Context, db Querier, ids []int64) (map[int64]agent.Configuration, error) {
	found := make(map[int64]agent.Configuration, len(ids))
	if len(ids) == 0 {
		return found, nil
	}
	rows, err := db.Query(ctx, `select id, `+configurationColumn+` from agents where id = any($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("read the configurations of %d agents: %w", len(ids), err)
	}
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
