package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/outbox"
	"lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/state/domain"
)

// ConfigureAgent changes what is set for an agent, and tells the agent. The fault invalid_argument names everything that would be wrong; failed_precondition says that
// the agent was revoked. What leaves everything as it is makes no new revision.
func (d *Directory) ConfigureAgent(ctx context.Context, id int64, change domain.AgentSettings) (domain.Agent, error) {
	var a domain.Agent
	err := postgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		var before domain.AgentSettings
		err := tx.QueryRow(ctx, `select configuration from agents where id = $1 for no key update`, id).Scan(&before)
		if err != nil {
			return asFault(err, "", fmt.Sprintf("agent %d", id))
		}
		after := before.Merge(change)
		if err := after.Configuration().Validate(); err != nil {
			return err
		}
		grows := 0
		if !after.Configuration().Equal(before.Configuration()) {
			grows = 1
		}
		rows, err := tx.Query(ctx, `update agents set configuration = $2, configuration_revision = configuration_revision + $3 where id = $1 returning `+agentColumns, id, after, grows)
		if err != nil {
			return fmt.Errorf("configure agent %d: %w", id, err)
		}
		if a, err = pgx.CollectExactlyOneRow(rows, scanAgent); err != nil {
			return fmt.Errorf("configure agent %d: %w", id, err)
		}
		if a.Revoked {
			return fault.New(errcode.FailedPrecondition, "agent %d is revoked: it follows no configuration any more", id)
		}
		if grows == 0 {
			return nil
		}
		return d.tellConfiguration(ctx, tx, a)
	})
	return a, err
}

// RaiseConfigurations gives every agent's configuration a revision that was never given before, for a database that was restored from an older copy: agents
// keep to the highest one that they have heard of. Each is told with the next TellAgain.
func (d *Directory) RaiseConfigurations(ctx context.Context, tx pgx.Tx) error {
	// Revisions grow by one with each change, which is made by hand, so that the seconds since 1970 are ahead of all.
	_, err := tx.Exec(ctx, `
		with locked as (select id from agents order by id for no key update)
		update agents a set configuration_revision = greatest(configuration_revision + 1, $1) from locked where locked.id = a.id`, d.Now().Unix())
	if err != nil {
		return fmt.Errorf("raise the revisions of configurations: %w", err)
	}
	return nil
}

// AgentConfigurations returns those of these agents that exist.
func (d *Directory) AgentConfigurations(ctx context.Context, ids []int64) (map[int64]domain.AgentConfiguration, error) {
	rows, err := d.DB.Query(ctx, `select id, configuration from agents where id = any($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("read the configurations of %d agents: %w", len(ids), err)
	}
	found := make(map[int64]domain.AgentConfiguration, len(ids))
	var id int64
	var settings domain.AgentSettings
	_, err = pgx.ForEachRow(rows, []any{&id, &settings}, func() error {
		found[id] = settings.Configuration()
		settings = domain.AgentSettings{}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the configurations of %d agents: %w", len(ids), err)
	}
	return found, nil
}

// LastResyncs returns, of each of these agents that has begun one, the last full resync.
func (d *Directory) LastResyncs(ctx context.Context, ids []int64) (map[int64]domain.Resync, error) {
	type row struct {
		agentID int64
		resync  domain.Resync
	}
	rows, err := list(ctx, d, "resyncs", func(r pgx.CollectableRow) (row, error) {
		var out row
		var ended *time.Time
		err := r.Scan(&out.agentID, &out.resync.ID, &out.resync.Cause, &out.resync.Nonce, &out.resync.Outcome, &out.resync.Count, &out.resync.BegunAt, &ended)
		out.resync.EndedAt = fromNullable(ended)
		return out, err //nolint:wrapcheck // the query's caller says what it asked for
	}, `
		select distinct on (agent_id) agent_id, resync_id, cause, coalesce(nonce, ''), outcome, expected, begun_at, ended_at
		from resyncs where agent_id = any($1) order by agent_id, begun_at desc, resync_id desc`, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[int64]domain.Resync, len(rows))
	for _, r := range rows {
		found[r.agentID] = r.resync
	}
	return found, nil
}

// tellConfiguration tells an agent, whose row is locked, what it is configured with.
func (d *Directory) tellConfiguration(ctx context.Context, tx pgx.Tx, a domain.Agent) error {
	c := a.Configuration
	m, err := message(ctx, d.Cell, event.Attributes{
		Type: events.TypeAgentConfig, Subject: fmt.Sprintf("agent/%d", a.ID), ID: fmt.Sprintf("agent/%d/configuration/%d", a.ID, a.ConfigurationRevision), Time: d.Now(),
	}, d.Cell.ControlConfig(a.ID), events.AgentConfig{
		ConfigRevision: int(a.ConfigurationRevision), FullResyncIntervalMs: int(c.FullResyncInterval.Milliseconds()),
		UnschedulablePatienceMs: int(c.UnschedulablePatience.Milliseconds()), StopPatienceMs: int(c.StopPatience.Milliseconds()), RelayTargets: relayTargets(c.RelayTargets),
	})
	if err != nil {
		return err
	}
	if err := outbox.Insert(ctx, tx, m); err != nil {
		return fmt.Errorf("tell agent %d its configuration: %w", a.ID, err)
	}
	return nil
}

func relayTargets(targets []domain.RelayTarget) []events.RelayTarget {
	var told []events.RelayTarget
	for _, t := range targets {
		told = append(told, events.RelayTarget{Name: t.Name, Address: t.Address})
	}
	return told
}
