package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/agent"
)

// BlockAgent stores a block. It returns false and changes nothing if the agent is blocked for as long already.
func (d *Directory) BlockAgent(ctx context.Context, tx pgx.Tx, id int64, b agent.Block) (bool, error) {
	stored, err := tx.Exec(ctx, `
		insert into agent_blocks as b (agent_id, reason, blocked_at, blocked_until) values ($1, $2, $3, $4)
		on conflict (agent_id) do update
			set reason = excluded.reason, blocked_at = excluded.blocked_at, blocked_until = excluded.blocked_until
			where b.blocked_until < excluded.blocked_until`, id, b.Reason, b.At, b.Until)
	if err != nil {
		return false, fmt.Errorf("block agent %d: %w", id, err)
	}
	return stored.RowsAffected() > 0, nil
}

// UnblockAgents ends the blocks that were stored before a time, except those of these agents.
func (d *Directory) UnblockAgents(ctx context.Context, before time.Time, except []int64) error {
	_, err := d.DB.Exec(ctx, `delete from agent_blocks where blocked_at < $1 and agent_id <> all($2)`, before, except)
	if err != nil {
		return fmt.Errorf("unblock agents: %w", err)
	}
	return nil
}

// AgentBlocks returns the blocks of these agents that have not ended.
func (d *Directory) AgentBlocks(ctx context.Context, ids ...int64) (map[int64]agent.Block, error) {
	rows, err := d.DB.Query(ctx, `
		select agent_id, reason, blocked_at, blocked_until from agent_blocks
		where agent_id = any($1) and blocked_until > $2`, ids, d.Now())
	if err != nil {
		return nil, fmt.Errorf("read the blocks of %d agents: %w", len(ids), err)
	}
	blocks := map[int64]agent.Block{}
	var id int64
	var b agent.Block
	var at, until time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &b.Reason, &at, &until}, func() error {
		b.At, b.Until = at.UTC(), until.UTC()
		blocks[id] = b
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the blocks of %d agents: %w", len(ids), err)
	}
	return blocks, nil
}
