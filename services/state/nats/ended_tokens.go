package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
)

// endedTokensInterval is the time between two reads of the ended tokens.
const endedTokensInterval = time.Second

// EndedTokens closes the connections of agents whose token before a rotation has ended. Programs with the new token
// connect again. Each replica may run one. Its fields are required.
type EndedTokens struct {
	// Agents returns the agents with an ended token. Nobody can connect with it any more.
	Agents func(ctx context.Context) ([]int64, error)
	// Disconnect closes the connections of an agent.
	Disconnect func(ctx context.Context, agent int64) error
	// Clear forgets the ended token of an agent.
	Clear  func(ctx context.Context, agent int64) error
	Logger *slog.Logger
}

// Run closes connections until ctx ends. It retries all failures, also after a restart: a token is cleared when its
// connections are closed.
func (e *EndedTokens) Run(ctx context.Context) error {
	var failures retry.FailureLog
	for {
		err := e.disconnectAll(ctx)
		if err == nil {
			failures.Reset()
		} else if ctx.Err() == nil {
			e.Logger.LogAttrs(ctx, failures.Level(), "ending tokens of agents failed; retrying", logkey.Error(err))
		}
		if retry.Sleep(ctx, endedTokensInterval) != nil {
			return nil //nolint:nilerr // ctx has ended
		}
	}
}

// disconnectAll handles all agents. An error of one does not prevent the others.
func (e *EndedTokens) disconnectAll(ctx context.Context) error {
	agents, err := e.Agents(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range agents {
		if err := e.disconnect(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("end the previous token of agent %d: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func (e *EndedTokens) disconnect(ctx context.Context, agent int64) error {
	if err := e.Disconnect(ctx, agent); err != nil {
		return err
	}
	if err := e.Clear(ctx, agent); err != nil {
		return err
	}
	e.Logger.InfoContext(ctx, "the previous token of an agent has ended", slog.Int64(logkey.AgentID, agent))
	return nil
}
