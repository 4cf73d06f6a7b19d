package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/agent"
)

// BeginSilences stores and returns the silences of agents that reported before a time and not since. Revoked agents are
// left out. Each silence is stored once.
func (d *Directory) BeginSilences(ctx context.Context, tx pgx.Tx, before time.Time) ([]agent.Silence, error) {
	return list(ctx, d.Within(tx), "silent agents", scanSilence, `
		insert into agent_silences (agent_id, silent_since)
		select id, last_seen_at from agents where last_seen_at < $1 and revoked_at is null order by id
		on conflict do nothing returning agent_id, silent_since, null::timestamptz`, before)
}

// EndSilences deletes and returns the silences of agents that reported since.
func (d *Directory) EndSilences(ctx context.Context, tx pgx.Tx) ([]agent.Silence, error) {
	return list(ctx, d.Within(tx), "returned agents", scanSilence, `
		delete from agent_silences s using agents a where a.id = s.agent_id and a.last_seen_at > s.silent_since
		returning s.agent_id, s.silent_since, a.last_seen_at`)
}

// NotifyStaleness notifies WorkspaceChannel of the workspaces of agents that became silent, returned or were revoked.
func (d *Directory) NotifyStaleness(ctx context.Context, tx pgx.Tx, agents ...int64) error {
	_, err := tx.Exec(ctx, `
		select pg_notify('`+WorkspaceChannel+`', id::text) from workspaces
		where agent_id = any($1) and actual_state <> 'terminated'`, agents)
	if err != nil {
		return fmt.Errorf("notify the workspaces of %d agents: %w", len(agents), err)
	}
	return nil
}

func scanSilence(row pgx.CollectableRow) (agent.Silence, error) {
	var s agent.Silence
	var since, until *time.Time
	err := row.Scan(&s.AgentID, &since, &until)
	s.Since, s.Until = fromNullable(since).UTC(), fromNullable(until).UTC()
	return s, err //nolint:wrapcheck // the caller wraps it
}

// CountSilent returns the number of silent agents that are not revoked.
func (d *Directory) CountSilent(ctx context.Context) (int64, error) {
	return one(ctx, d, "silent agents", pgx.RowTo[int64], `
		select count(*) from agent_silences join agents on id = agent_id where revoked_at is null`)
}

// SilentSince returns when each of these agents reported last, of those that are silent or revoked. It is the zero time
// for each that never reported.
func (d *Directory) SilentSince(ctx context.Context, ids []int64) (map[int64]time.Time, error) {
	found, err := list(ctx, d, "silent agents", scanSilence, `
		select id, coalesce(silent_since, last_seen_at), null::timestamptz
		from agents left join agent_silences on agent_id = id
		where id = any($1) and (last_seen_at is null or silent_since is not null or revoked_at is not null)`, ids)
	if err != nil {
		return nil, err
	}
	since := make(map[int64]time.Time, len(found))
	for _, s := range found {
		since[s.AgentID] = s.Since
	}
	return since, nil
}
