package connectapi

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nkeys"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/domain"
	"lockstep.internal/services/state/postgres"
)

// Agents is what the API needs of NATS when agents come and go.
type Agents interface {
	// Admit prepares what an agent needs before it connects, such as its consumers. It may be called again.
	Admit(ctx context.Context, agent int64) error
	// AdmitAgain has Admit called again for every agent, until it succeeds.
	AdmitAgain()
	// Expel cuts an agent's live connections.
	Expel(ctx context.Context, agent int64) error
}

// AgentEndpoint is what an agent is told to connect to.
type AgentEndpoint struct {
	URLs []string
	Cell string
	CA   string
}

type agentService struct {
	statev1connect.UnimplementedAgentServiceHandler
	access

	pool         *pgxpool.Pool
	observations *postgres.Observations
	now          func() time.Time
	agents       Agents
	endpoint     AgentEndpoint
	sealerKey    string
	logger       *slog.Logger
}

func (s *agentService) RegisterAgent(ctx context.Context, r *connect.Request[statev1.RegisterAgentRequest]) (*connect.Response[statev1.RegisterAgentResponse], error) {
	if err := slug(r.Msg.GetName()); err != nil {
		return nil, err
	}
	if err := id("project_id", r.Msg.GetProjectId()); err != nil {
		return nil, err
	}
	if !nkeys.IsValidPublicCurveKey(r.Msg.GetCurvePublicKey()) {
		return nil, fault.New(errcode.InvalidArgument, "curve_public_key is not a public X25519 key as nkeys writes it (prefix X)").With("field", "curve_public_key")
	}
	if err := s.allow(ctx, projectScope(r.Msg.GetProjectId()), false, authz.ManageAgents, fmt.Sprintf("project %d", r.Msg.GetProjectId())); err != nil {
		return nil, err
	}
	value := natsauth.NewToken(natsauth.TokenAgent)
	hash, err := natsauth.HashToken(natsauth.TokenAgent, value)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Internal, "make a token")
	}
	a, err := s.directory.RegisterAgent(ctx, domain.Agent{
		ProjectID: r.Msg.GetProjectId(), Name: r.Msg.GetName(), CurvePublicKey: r.Msg.GetCurvePublicKey(), TokenHash: hash[:],
	})
	if err != nil {
		return nil, err
	}
	// The agent is made whether or not NATS answers now.
	if err := s.agents.Admit(ctx, a.ID); err != nil {
		s.logger.WarnContext(ctx, "prepare NATS for the new agent: it is tried again", "agent", a.ID, "error", err)
		s.agents.AdmitAgain()
	}
	return connect.NewResponse(&statev1.RegisterAgentResponse{Agent: agent(a), Token: value, NatsUrls: s.endpoint.URLs, Cell: s.endpoint.Cell, NatsCa: s.endpoint.CA, SealerPublicKey: s.sealerKey}), nil
}

func (s *agentService) GetAgent(ctx context.Context, r *connect.Request[statev1.GetAgentRequest]) (*connect.Response[statev1.GetAgentResponse], error) {
	a, err := s.agent(ctx, r.Msg.GetId(), authz.Read)
	if err != nil {
		return nil, err
	}
	shown, err := s.shown(ctx, a)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.GetAgentResponse{Agent: shown[0]}), nil
}

func (s *agentService) ListAgents(ctx context.Context, r *connect.Request[statev1.ListAgentsRequest]) (*connect.Response[statev1.ListAgentsResponse], error) {
	p, err := page(r.Msg.GetPageSize(), r.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	projects := []int64{r.Msg.GetProjectId()}
	if r.Msg.GetProjectId() == 0 {
		projects, err = s.visible(ctx)
	} else {
		err = s.allow(ctx, projectScope(r.Msg.GetProjectId()), false, authz.Read, fmt.Sprintf("project %d", r.Msg.GetProjectId()))
	}
	if err != nil {
		return nil, err
	}
	found, err := s.directory.Agents(ctx, projects, p)
	if err != nil {
		return nil, err
	}
	shown, err := s.shown(ctx, found...)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.ListAgentsResponse{Agents: shown, NextPageToken: next(found, p, func(a domain.Agent) int64 { return a.ID })}), nil
}

func (s *agentService) RevokeAgent(ctx context.Context, r *connect.Request[statev1.RevokeAgentRequest]) (*connect.Response[statev1.RevokeAgentResponse], error) {
	a, err := s.agent(ctx, r.Msg.GetId(), authz.ManageAgents)
	if err != nil {
		return nil, err
	}
	if a, err = s.directory.RevokeAgent(ctx, a.ID); err != nil {
		return nil, err
	}
	if err := s.agents.Expel(ctx, a.ID); err != nil {
		return nil, fault.Wrap(err, errcode.Unavailable, "agent %d is revoked and cannot connect again, but its live connections could not be cut: try again", a.ID)
	}
	return connect.NewResponse(&statev1.RevokeAgentResponse{Agent: agent(a)}), nil
}

func (s *agentService) agent(ctx context.Context, agentID int64, action authz.Action) (domain.Agent, error) {
	if err := id("id", agentID); err != nil {
		return domain.Agent{}, err
	}
	a, err := s.directory.Agent(ctx, agentID)
	if err != nil {
		return domain.Agent{}, err
	}
	return a, s.allow(ctx, projectScope(a.ProjectID), false, action, fmt.Sprintf("agent %d", a.ID))
}
