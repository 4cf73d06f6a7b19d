package nats

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/postgres"
)

// Authenticator lets in agents by their id and token, and subscribers by their name and token, as the directory knows them.
type Authenticator struct {
	Directory *postgres.Directory
}

// Authenticate returns who is behind the credentials. The token is looked up by its hash, so that no comparison depends on a secret.
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
		return natsauth.Principal{}, fmt.Errorf("%w: subscriber %q is unknown or revoked, or the token is not its own", natsauth.ErrRefused, name)
	}
	if err != nil {
		return natsauth.Principal{}, fmt.Errorf("look up subscriber %q: %w", name, err)
	}
	if listens {
		return natsauth.Principal{Kind: natsauth.KindListener, Name: s.Name, Filter: s.Filter}, nil
	}
	return natsauth.Principal{Kind: natsauth.KindSubscriber, Name: s.Name}, nil
}

func (a *Authenticator) agent(ctx context.Context, c natsauth.Credentials) (natsauth.Principal, error) {
	id, err := strconv.ParseInt(c.User, 10, 64)
	if err != nil || id <= 0 {
		return natsauth.Principal{}, fmt.Errorf("%w: user is no agent's id", natsauth.ErrRefused)
	}
	hash, err := natsauth.HashToken(natsauth.TokenAgent, c.Password)
	if err != nil {
		return natsauth.Principal{}, fmt.Errorf("%w: %w", natsauth.ErrRefused, err)
	}
	agent, err := a.Directory.AgentByToken(ctx, id, hash[:])
	if fault.Is(err, errcode.NotFound) {
		return natsauth.Principal{}, fmt.Errorf("%w: agent %d is unknown or revoked, or the token is not its own", natsauth.ErrRefused, id)
	}
	if err != nil {
		return natsauth.Principal{}, fmt.Errorf("look up agent %d: %w", id, err)
	}
	return natsauth.Principal{Kind: natsauth.KindAgent, AgentID: agent.ID}, nil
}

// Agents prepares NATS for agents, and throws them out.
type Agents struct {
	Streams jetstream.JetStream
	Kicker  *natsauth.Disconnector
	Cell    topology.Cell
	Logger  *slog.Logger
	// Background runs work that outlives the call, and is waited for when the service stops.
	Background func(func(ctx context.Context))
	// Again has room for one element: that all agents are to be admitted anew.
	Again chan struct{}
}

// AdmitAgain has all agents admitted anew, by whoever receives from Again.
func (a *Agents) AdmitAgain() {
	select {
	case a.Again <- struct{}{}:
	default: // that is to be done already
	}
}

// Admit makes the consumers that the agent reads with.
func (a *Agents) Admit(ctx context.Context, agent int64) error {
	if err := topology.EnsureAgent(ctx, a.Streams, a.Cell, agent); err != nil {
		return fmt.Errorf("admit agent %d: %w", agent, err)
	}
	return nil
}

// Expel cuts the agent's connections now, and once more in the background, for one that was being admitted meanwhile.
func (a *Agents) Expel(ctx context.Context, agent int64) error {
	principal := natsauth.Principal{Kind: natsauth.KindAgent, AgentID: agent}
	if _, err := a.Kicker.DisconnectOnce(ctx, principal); err != nil {
		return fmt.Errorf("expel agent %d: %w", agent, err)
	}
	a.Background(func(ctx context.Context) {
		if _, err := a.Kicker.Disconnect(ctx, principal); err != nil && ctx.Err() == nil {
			a.Logger.WarnContext(ctx, "cut the revoked agent's connections a second time", "agent", agent, "error", err)
		}
	})
	return nil
}
