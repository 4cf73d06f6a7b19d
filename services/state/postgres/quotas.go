package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/workspace"
)

// CheckQuota checks the agent's limits before a workspace is inserted. It returns the fault quota_exceeded if a limit
// is reached. It locks an agent that has limits, so that concurrent creations are counted. Call it before locking
// workspaces.
func (s *Workspaces) CheckQuota(ctx context.Context, tx pgx.Tx, w workspace.Workspace) error {
	in, err := s.readQuotaInput(ctx, tx, w, "")
	if err != nil || !in.configuration.Limited() {
		return err
	}
	if in, err = s.readQuotaInput(ctx, tx, w, " for no key update of a"); err != nil {
		return err
	}
	var usage agent.Usage
	err = tx.QueryRow(ctx, `
		select count(*), count(*) filter (where user_id = $2) from workspaces
			where agent_id = $1 and desired_state <> 'terminated' and actual_state <> 'terminated'`,
		w.AgentID, w.UserID).Scan(&usage.Agent, &usage.User)
	if err != nil {
		return fmt.Errorf("count the workspaces of agent %d: %w", w.AgentID, err)
	}
	return in.configuration.CheckQuota(in.agent, in.user, usage)
}

// quotaInput is what a quota check reads: the names for its error, and the agent's configuration.
type quotaInput struct {
	agent, user   string
	configuration agent.Configuration
}

func (s *Workspaces) readQuotaInput(
	ctx context.Context, tx pgx.Tx, w workspace.Workspace, locking string,
) (quotaInput, error) {
	var in quotaInput
	var settings agent.Settings
	err := tx.QueryRow(ctx, `select a.name, u.username, `+configurationColumn+` from agents a, users u
		where a.id = $1 and u.id = $2`+locking, w.AgentID, w.UserID).
		Scan(&in.agent, &in.user, &settings)
	in.configuration = settings.Configuration()
	return in, asFault(err, "", fmt.Sprintf("agent %d or user %d of workspace %q", w.AgentID, w.UserID, w.Name))
}
