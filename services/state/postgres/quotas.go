package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"lockstep.internal/services/state/domain"
)

// Admit refuses a workspace that is about to be inserted where a limit of its agent is reached, with the fault quota_exceeded. An agent with limits is locked, so that
// workspaces are counted one after the other; it comes before any workspace is locked.
func (s *Workspaces) Admit(ctx context.Context, tx pgx.Tx, w domain.Workspace) error {
	limits, err := s.limits(ctx, tx, w, "")
	if err != nil || !limits.configuration.Limited() {
		return err
	}
	if limits, err = s.limits(ctx, tx, w, " for no key update of a"); err != nil {
		return err
	}
	var have domain.Census
	err = tx.QueryRow(ctx, `
		select count(*), count(*) filter (where user_id = $2) from workspaces where agent_id = $1 and desired_state <> 'terminated' and actual_state <> 'terminated'`,
		w.AgentID, w.UserID).Scan(&have.OfAgent, &have.OfUser)
	if err != nil {
		return fmt.Errorf("count the workspaces of agent %d: %w", w.AgentID, err)
	}
	return limits.configuration.Admit(limits.agent, limits.user, have)
}

// limits are what is to be known of a workspace's agent and user.
type limits struct {
	agent, user   string
	configuration domain.AgentConfiguration
}

func (s *Workspaces) limits(ctx context.Context, tx pgx.Tx, w domain.Workspace, locking string) (limits, error) {
	var l limits
	var settings domain.AgentSettings
	err := tx.QueryRow(ctx, `select a.name, u.username, a.configuration from agents a, users u where a.id = $1 and u.id = $2`+locking, w.AgentID, w.UserID).
		Scan(&l.agent, &l.user, &settings)
	l.configuration = settings.Configuration()
	return l, asFault(err, "", fmt.Sprintf("agent %d or user %d of workspace %q", w.AgentID, w.UserID, w.Name))
}
