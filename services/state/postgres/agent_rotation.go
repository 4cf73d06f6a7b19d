package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/agent"
)

// LockAgent returns an agent and locks it until the transaction ends.
func (d *Directory) LockAgent(ctx context.Context, tx pgx.Tx, id int64) (agent.Agent, error) {
	return one(ctx, d.Within(tx), fmt.Sprintf("agent %d", id), scanAgent,
		`select `+agentColumns+` from agents where id = $1 for no key update`, id)
}

// SaveTokens stores the tokens of a locked agent.
func (d *Directory) SaveTokens(ctx context.Context, tx pgx.Tx, a agent.Agent) error {
	_, err := tx.Exec(ctx, `
		update agents set token_hash = $2, previous_token_hash = $3, previous_token_valid_until = $4 where id = $1`,
		a.ID, a.TokenHash, a.PreviousTokenHash, nullable(a.PreviousTokenValidUntil))
	if err != nil {
		return fmt.Errorf("store the tokens of agent %d: %w", a.ID, err)
	}
	return nil
}

// AgentsWithEndedToken returns the agents whose previous token has ended and is not cleared.
func (d *Directory) AgentsWithEndedToken(ctx context.Context) ([]int64, error) {
	return list(ctx, d, "agents with an ended token", pgx.RowTo[int64],
		`select id from agents where previous_token_hash is not null and previous_token_valid_until <= $1 order by id`,
		d.Now())
}
