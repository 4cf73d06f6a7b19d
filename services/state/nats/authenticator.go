package nats

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/postgres"
)

// Authenticator authenticates agents by id and token, and subscribers by name and token.
type Authenticator struct {
	Directory *postgres.Directory
}

// Authenticate returns the principal of the credentials. Tokens are looked up by hash, so no timing depends on a
// secret.
func (a *Authenticator) Authenticate(ctx context.Context, c natsauth.Credentials) (natsauth.Principal, error) {
	if strings.HasPrefix(c.Password, string(natsauth.TokenSubscriber)+"_") {
		return a.subscriber(ctx, c)
	}
	return a.agent(ctx, c)
}

func (a *Authenticator) subscriber(ctx context.Context, c natsauth.Credentials) (natsauth.Principal, error) {
	hash, err := natsauth.HashToken(natsauth.TokenSubscriber, c.Password)
	if err != nil {
		return natsauth.Principal{}, fmt.Errorf("%w: %w", natsauth.ErrRefused, err)
	}
	name, listens := natsauth.ParseSubscriberUser(c.User)
	s, err := a.Directory.SubscriberByToken(ctx, name, hash[:])
	if fault.Is(err, errcode.NotFound) {
		return natsauth.Principal{}, fmt.Errorf(
			"%w: subscriber %q is unknown or revoked, or the token is wrong",
			natsauth.ErrRefused,
			name,
		)
	}
	if err != nil {
		return natsauth.Principal{}, fmt.Errorf("look up subscriber %q: %w", name, err)
	}
	kind := natsauth.KindSubscriber
	if listens {
		kind = natsauth.KindListener
	}
	return natsauth.Principal{Kind: kind, Name: s.Name, Filter: s.Filter}, nil
}

func (a *Authenticator) agent(ctx context.Context, c natsauth.Credentials) (natsauth.Principal, error) {
	id, err := strconv.ParseInt(c.User, 10, 64)
	if err != nil || id <= 0 {
		return natsauth.Principal{}, fmt.Errorf("%w: the user is not an agent id", natsauth.ErrRefused)
	}
	hash, err := natsauth.HashToken(natsauth.TokenAgent, c.Password)
	if err != nil {
		return natsauth.Principal{}, fmt.Errorf("%w: %w", natsauth.ErrRefused, err)
	}
	agent, err := a.Directory.AgentByToken(ctx, id, hash[:])
	if fault.Is(err, errcode.NotFound) {
		return natsauth.Principal{}, fmt.Errorf(
			"%w: agent %d is unknown or revoked, or the token is wrong",
			natsauth.ErrRefused,
			id,
		)
	}
	if err != nil {
		return natsauth.Principal{}, fmt.Errorf("look up agent %d: %w", id, err)
	}
	blocks, err := a.Directory.AgentBlocks(ctx, id)
	if err != nil {
		return natsauth.Principal{}, fmt.Errorf("look up agent %d: %w", id, err)
	}
	if block, blocked := blocks[id]; blocked {
		return natsauth.Principal{}, fmt.Errorf("%w: agent %d is blocked until %s: it %s",
			natsauth.ErrRefused, id, block.Until.Format(time.RFC3339), block.Reason)
	}
	principal := natsauth.Principal{Kind: natsauth.KindAgent, AgentID: agent.ID}
	if !bytes.Equal(hash[:], agent.TokenHash) {
		principal.NotAfter = agent.PreviousTokenValidUntil
	}
	return principal, nil
}

// Agents creates the consumers of agents and disconnects revoked agents.
type Agents struct {
	JetStream    jetstream.JetStream
	Disconnector *natsauth.Disconnector
	Cell         topology.Cell
	Logger       *slog.Logger
	// Background runs work after the call. The service waits for it when it stops.
	Background func(func(ctx context.Context))
	// EnsureRequests has one element if all consumers must be checked again.
	EnsureRequests chan struct{}
}

// RequestEnsure requests a new check of all consumers.
func (a *Agents) RequestEnsure() {
	select {
	case a.EnsureRequests <- struct{}{}:
	default: // it is requested already
	}
}

// Ensure creates or updates the consumers of the agent.
func (a *Agents) Ensure(ctx context.Context, agent int64) error {
	if err := topology.EnsureAgent(ctx, a.JetStream, a.Cell, agent); err != nil {
		return fmt.Errorf("ensure the consumers of agent %d: %w", agent, err)
	}
	return nil
}

// Disconnect closes the agent's connections now, and once more in the background for a connection that was
// being authenticated.
func (a *Agents) Disconnect(ctx context.Context, agent int64) error {
	principal := natsauth.Principal{Kind: natsauth.KindAgent, AgentID: agent}
	if _, err := a.Disconnector.DisconnectOnce(ctx, principal); err != nil {
		return fmt.Errorf("disconnect agent %d: %w", agent, err)
	}
	a.Background(func(ctx context.Context) {
		if _, err := a.Disconnector.Disconnect(ctx, principal); err != nil && ctx.Err() == nil {
			a.Logger.WarnContext(ctx, "second disconnect of a revoked agent failed",
				slog.Int64(logkey.AgentID, agent), logkey.Error(err))
		}
	})
	return nil
}
