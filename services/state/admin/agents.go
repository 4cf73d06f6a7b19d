package admin

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/outbox"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/directory"
)

// RegisterAgent creates an agent in a project with at most limit agents, and publishes its entry and its configuration.
func (d *Directory) RegisterAgent(ctx context.Context, a agent.Agent, limit int) (agent.Agent, error) {
	err := libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) (err error) {
		if a, err = d.Directory.RegisterAgent(ctx, tx, a, limit); err != nil {
			return err
		}
		if err := d.publish(ctx, tx, a.Entry()); err != nil {
			return err
		}
		return d.publishConfigurations(ctx, tx, a)
	})
	return a, err
}

// RevokeAgent revokes an agent's credentials permanently. Its workspaces are stale from now on.
func (d *Directory) RevokeAgent(ctx context.Context, id int64) (agent.Agent, error) {
	var a agent.Agent
	err := d.change(ctx, func(tx pgx.Tx) (_ []directory.Entry, err error) {
		if a, err = d.Directory.RevokeAgent(ctx, tx, id); err != nil {
			return nil, err
		}
		return []directory.Entry{a.Entry()}, d.NotifyStaleness(ctx, tx, id)
	})
	return a, err
}

// RotateAgent gives an agent a new token, see [agent.Agent.Rotate].
func (d *Directory) RotateAgent(
	ctx context.Context, id int64, tokenHash []byte, overlap time.Duration,
) (agent.Agent, error) {
	var a agent.Agent
	err := d.change(ctx, func(tx pgx.Tx) (_ []directory.Entry, err error) {
		if a, err = d.LockAgent(ctx, tx, id); err != nil {
			return nil, err
		}
		if a, err = a.Rotate(tokenHash, overlap, d.Now().UTC()); err != nil {
			return nil, err
		}
		return []directory.Entry{a.Entry()}, d.SaveTokens(ctx, tx, a)
	})
	return a, err
}

// ClearEndedToken forgets the previous token of an agent if it has ended. Call it when the token's connections are
// closed.
func (d *Directory) ClearEndedToken(ctx context.Context, id int64) error {
	return d.change(ctx, func(tx pgx.Tx) ([]directory.Entry, error) {
		a, err := d.LockAgent(ctx, tx, id)
		if err != nil || len(a.PreviousTokenHash) == 0 || d.Now().Before(a.PreviousTokenValidUntil) {
			return nil, err
		}
		a.PreviousTokenHash, a.PreviousTokenValidUntil = nil, time.Time{}
		return []directory.Entry{a.Entry()}, d.SaveTokens(ctx, tx, a)
	})
}

// BlockAgent refuses the agent's credentials until the end of the block, and publishes the block. It returns false if
// the agent is blocked for as long already.
func (d *Directory) BlockAgent(ctx context.Context, id int64, b agent.Block) (bool, error) {
	var blocked bool
	err := libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) (err error) {
		if blocked, err = d.Directory.BlockAgent(ctx, tx, id, b); err != nil || !blocked {
			return err
		}
		m, err := d.Encoder.AgentBlocked(ctx, id, b)
		if err != nil {
			return err
		}
		if err := outbox.Insert(ctx, tx, m); err != nil {
			return fmt.Errorf("publish the block of agent %d: %w", id, err)
		}
		return nil
	})
	return blocked, err
}

// RecordSilences records and publishes which agents reported again since they were silent, and which reported before a
// time and not since. It returns both. Each silence begins and ends once, however many replicas call it.
func (d *Directory) RecordSilences(
	ctx context.Context, before, at time.Time,
) (silent, returned []agent.Silence, err error) {
	err = libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) (err error) {
		if returned, err = d.EndSilences(ctx, tx); err != nil {
			return err
		}
		if silent, err = d.BeginSilences(ctx, tx, before); err != nil {
			return err
		}
		messages := make([]*nats.Msg, len(returned)+len(silent))
		agents := make([]int64, len(messages))
		for i, s := range returned {
			agents[i] = s.AgentID
			if messages[i], err = d.Encoder.AgentReturned(ctx, s); err != nil {
				return err
			}
		}
		for i, s := range silent {
			agents[len(returned)+i] = s.AgentID
			if messages[len(returned)+i], err = d.Encoder.AgentSilent(ctx, s, at); err != nil {
				return err
			}
		}
		if err := outbox.Insert(ctx, tx, messages...); err != nil {
			return fmt.Errorf("publish the silences of agents: %w", err)
		}
		return d.NotifyStaleness(ctx, tx, agents...)
	})
	return silent, returned, err
}

// ConfigureAgent changes an agent's settings and publishes the configuration. The settings named in reset get the
// value of the cell. A change without effect makes no new revision. If the manifests change, the workspaces of the
// agent are queued for rendering. The fault invalid_argument names every invalid field. It returns the fault
// failed_precondition if the agent is revoked.
func (d *Directory) ConfigureAgent(
	ctx context.Context, id int64, change agent.Settings, reset ...string,
) (agent.Agent, error) {
	var a agent.Agent
	err := libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		before, err := d.LockSettings(ctx, tx, id)
		if err != nil {
			return err
		}
		after, changed, err := before.Change(change, reset...)
		if err != nil {
			return err
		}
		revisions := 0
		if changed {
			revisions = 1
		}
		if a, err = d.SaveSettings(ctx, tx, id, after.Agent, revisions); err != nil {
			return err
		}
		if a.Revoked {
			return fault.New(errcode.FailedPrecondition, "agent %q is revoked and cannot be configured", a.Name)
		}
		if !changed {
			return nil
		}
		if !a.Configuration.Manifests.Equal(before.Configuration().Manifests) {
			if err := d.QueueRender(ctx, tx, id); err != nil {
				return err
			}
		}
		return d.publishConfigurations(ctx, tx, a)
	})
	return a, err
}

// ConfigureCell stores the settings of the cell. If they change the manifests, all workspaces are queued for rendering.
func (d *Directory) ConfigureCell(ctx context.Context, s agent.Settings) error {
	return libpostgres.InTx(ctx, d.DB, func(tx pgx.Tx) error {
		before, err := d.LockCellSettings(ctx, tx)
		if err != nil || reflect.DeepEqual(before, s) {
			return err
		}
		if err := d.SaveCellSettings(ctx, tx, s); err != nil {
			return err
		}
		if s.Configuration().Manifests.Equal(before.Configuration().Manifests) {
			return nil
		}
		return d.QueueRender(ctx, tx)
	})
}

// publishConfigurations puts the configurations of locked agents into the outbox.
func (d *Directory) publishConfigurations(ctx context.Context, tx pgx.Tx, agents ...agent.Agent) error {
	messages := make([]*nats.Msg, len(agents))
	for i := range agents {
		var err error
		if messages[i], err = d.Encoder.AgentConfig(ctx, agents[i], d.Now()); err != nil {
			return err
		}
	}
	if err := outbox.Insert(ctx, tx, messages...); err != nil {
		return fmt.Errorf("publish %d configurations: %w", len(agents), err)
	}
	return nil
}
