package api

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nkeys"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/agent"
	"lockstep.internal/services/state/authz"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/postgres"
)

// Agents manages the consumers and connections of agents.
type Agents interface {
	// Ensure creates or updates the agent's consumers.
	Ensure(ctx context.Context, agent int64) error
	// RequestEnsure starts a background check of the consumers of all agents and subscribers, with retries.
	RequestEnsure()
	// Disconnect closes the agent's connections.
	Disconnect(ctx context.Context, agent int64) error
}

// AgentEndpoint is the address that agents connect to.
type AgentEndpoint struct {
	URLs []string
	Cell string
	CA   string
}

type agentService struct {
	statev1connect.UnimplementedAgentServiceHandler
	access

	pool         *pgxpool.Pool
	ingestStores *postgres.IngestStores
	ingest       *ingest.Ingest
	now          func() time.Time
	agents       Agents
	maxAgents    int
	endpoint     AgentEndpoint
	prefix       string
	sealerKey    string
	logger       *slog.Logger
}

func (s *agentService) RegisterAgent(
	ctx context.Context,
	r *connect.Request[statev1.RegisterAgentRequest],
) (*connect.Response[statev1.RegisterAgentResponse], error) {
	if err := directory.CheckName(r.Msg.GetName()); err != nil {
		return nil, err
	}
	if err := id("project_id", r.Msg.GetProjectId()); err != nil {
		return nil, err
	}
	if !nkeys.IsValidPublicCurveKey(r.Msg.GetCurvePublicKey()) {
		return nil, fault.New(errcode.InvalidArgument,
			"curve_public_key is not a public X25519 key in nkeys format (prefix X)").
			With("field", "curve_public_key")
	}
	if err := s.allow(
		ctx,
		projectScope(r.Msg.GetProjectId()),
		false,
		authz.ManageAgents,
		fmt.Sprintf("project %d", r.Msg.GetProjectId()),
	); err != nil {
		return nil, err
	}
	value := natsauth.NewToken(natsauth.TokenAgent)
	hash, err := natsauth.HashToken(natsauth.TokenAgent, value)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Internal, "make a token")
	}
	a, err := s.directory.RegisterAgent(ctx, agent.Agent{
		ProjectID: r.Msg.GetProjectId(), Name: r.Msg.GetName(), CurvePublicKey: r.Msg.GetCurvePublicKey(), TokenHash: hash[:],
	}, s.maxAgents)
	if err != nil {
		return nil, err
	}
	// The agent exists even if NATS does not answer now.
	if err := s.agents.Ensure(ctx, a.ID); err != nil {
		s.logger.WarnContext(ctx, "create the consumers of a new agent failed; retrying",
			slog.Int64(logkey.AgentID, a.ID), logkey.Error(err))
		s.agents.RequestEnsure()
	}
	return connect.NewResponse(
		&statev1.RegisterAgentResponse{
			Agent:           agentMessage(a, s.prefix),
			Token:           value,
			NatsUrls:        s.endpoint.URLs,
			Cell:            s.endpoint.Cell,
			NatsCa:          s.endpoint.CA,
			SealerPublicKey: s.sealerKey,
		},
	), nil
}

func (s *agentService) GetAgent(
	ctx context.Context,
	r *connect.Request[statev1.GetAgentRequest],
) (*connect.Response[statev1.GetAgentResponse], error) {
	a, err := s.agent(ctx, r.Msg.GetId(), authz.Read)
	if err != nil {
		return nil, err
	}
	messages, err := s.messages(ctx, a)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.GetAgentResponse{Agent: messages[0]}), nil
}

func (s *agentService) ListAgents(
	ctx context.Context,
	r *connect.Request[statev1.ListAgentsRequest],
) (*connect.Response[statev1.ListAgentsResponse], error) {
	p, err := page(r.Msg.GetPageSize(), r.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	projects := []int64{r.Msg.GetProjectId()}
	if r.Msg.GetProjectId() == 0 {
		projects, err = s.visible(ctx)
	} else {
		err = s.allow(
			ctx,
			projectScope(r.Msg.GetProjectId()),
			false,
			authz.Read,
			fmt.Sprintf("project %d", r.Msg.GetProjectId()),
		)
	}
	if err != nil {
		return nil, err
	}
	found, err := s.directory.Agents(ctx, projects, p)
	if err != nil {
		return nil, err
	}
	messages, err := s.messages(ctx, found...)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(
		&statev1.ListAgentsResponse{
			Agents:        messages,
			NextPageToken: next(found, p, func(a agent.Agent) int64 { return a.ID }),
		},
	), nil
}

func (s *agentService) RotateAgent(
	ctx context.Context,
	r *connect.Request[statev1.RotateAgentRequest],
) (*connect.Response[statev1.RotateAgentResponse], error) {
	a, err := s.agent(ctx, r.Msg.GetId(), authz.ManageAgents)
	if err != nil {
		return nil, err
	}
	overlap := agent.DefaultTokenOverlap
	if given := r.Msg.GetValidFor(); given != nil {
		if err := given.CheckValid(); err != nil {
			return nil, fault.New(errcode.InvalidArgument, "valid_for: %v", err).With("field", "valid_for")
		}
		overlap = given.AsDuration()
	}
	value := natsauth.NewToken(natsauth.TokenAgent)
	hash, err := natsauth.HashToken(natsauth.TokenAgent, value)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Internal, "make a token")
	}
	if a, err = s.directory.RotateAgent(ctx, a.ID, hash[:], overlap); err != nil {
		return nil, err
	}
	messages, err := s.messages(ctx, a)
	if err != nil { // the token exists
		messages = []*statev1.Agent{agentMessage(a, s.prefix)}
	}
	return connect.NewResponse(&statev1.RotateAgentResponse{Agent: messages[0], Token: value}), nil
}

func (s *agentService) RevokeAgent(
	ctx context.Context,
	r *connect.Request[statev1.RevokeAgentRequest],
) (*connect.Response[statev1.RevokeAgentResponse], error) {
	a, err := s.agent(ctx, r.Msg.GetId(), authz.ManageAgents)
	if err != nil {
		return nil, err
	}
	if a, err = s.directory.RevokeAgent(ctx, a.ID); err != nil {
		return nil, err
	}
	if err := s.agents.Disconnect(ctx, a.ID); err != nil {
		return nil, fault.Wrap(
			err,
			errcode.Unavailable,
			"agent %q is revoked and cannot connect again, but closing its connections failed: try again",
			a.Name,
		)
	}
	return connect.NewResponse(&statev1.RevokeAgentResponse{Agent: agentMessage(a, s.prefix)}), nil
}

func (s *agentService) agent(ctx context.Context, agentID int64, action authz.Action) (agent.Agent, error) {
	if err := id("id", agentID); err != nil {
		return agent.Agent{}, err
	}
	a, err := s.directory.Agent(ctx, agentID)
	if err != nil {
		return agent.Agent{}, err
	}
	return a, s.allow(ctx, projectScope(a.ProjectID), false, action, fmt.Sprintf("agent %d", a.ID))
}
