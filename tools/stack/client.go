package stack

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/client"
)

// firstProject is the project of a stack's first agent.
const firstProject = "demo/platform/workspaces"

// Client calls the API as the first administrator.
func (s *Stack) Client() (*client.API, error) {
	token, err := s.AdminToken()
	if err != nil {
		return nil, err
	}
	return client.New(http.DefaultClient, s.apiURL, token), nil
}

// ensureProject makes the organization, group and project of a new stack.
func (s *Stack) ensureProject(ctx context.Context) (int64, error) {
	api, err := s.Client()
	if err != nil {
		return 0, err
	}
	project, err := api.EnsureProject(ctx, firstProject)
	if fault.Is(err, errcode.Unauthenticated) {
		return 0, fault.Wrap(err, errcode.Unauthenticated,
			"the administrator's token in %s was revoked: remove this file, and the next start creates another token",
			s.keys.AdminTokenFile)
	}
	if err != nil {
		return 0, fmt.Errorf("create project %s: %w", firstProject, err)
	}
	return project.GetId(), nil
}

// ensureAgent returns the agent of a credentials file. If there is none that may connect, it registers an agent, with
// another name if the project has an agent with this one, and writes the file.
func (s *Stack) ensureAgent(ctx context.Context, wanted Agent) (Agent, error) {
	api, err := s.Client()
	if err != nil {
		return Agent{}, err
	}
	credentials, err := natsauth.ReadAgentCredentials(wanted.CredentialsFile)
	var found *statev1.Agent
	if err == nil {
		if found, err = activeAgent(ctx, api, credentials.AgentID); err != nil {
			return Agent{}, err
		}
	}
	name := wanted.Name
	for n := 2; found == nil; n++ {
		credentials, found, err = RegisterAgent(ctx, api, wanted.ProjectID, name)
		if err != nil && !fault.Is(err, errcode.AlreadyExists) {
			return Agent{}, err
		}
		name = fmt.Sprintf("%s-%d", wanted.Name, n)
	}
	credentials.ServerURLs = strings.Split(s.natsURL(), ",") // another port than at the last start
	if err := natsauth.WriteAgentCredentials(wanted.CredentialsFile, credentials); err != nil {
		return Agent{}, fmt.Errorf("write the credentials: %w", err)
	}
	return Agent{
		ID: found.GetId(), Name: found.GetName(), ProjectID: found.GetProjectId(), CredentialsFile: wanted.CredentialsFile,
	}, nil
}

// activeAgent returns nil for an agent that does not exist or was revoked.
func activeAgent(ctx context.Context, api *client.API, id int64) (*statev1.Agent, error) {
	response, err := api.Agents.GetAgent(ctx, connect.NewRequest(&statev1.GetAgentRequest{Id: id}))
	if fault.Is(err, errcode.NotFound) || err == nil && response.Msg.GetAgent().GetRevoked() {
		return nil, nil //nolint:nilnil // it is optional
	}
	if err != nil {
		return nil, fmt.Errorf("get agent %d: %w", id, err)
	}
	return response.Msg.GetAgent(), nil
}

// RegisterAgent makes a key for an agent, registers it, and returns its credentials; the server does not store them.
func RegisterAgent(
	ctx context.Context, api *client.API, project int64, name string,
) (natsauth.AgentCredentials, *statev1.Agent, error) {
	key, err := seal.GenerateKey()
	if err != nil {
		return natsauth.AgentCredentials{}, nil, fault.Wrap(err, errcode.Internal, "create the agent's key")
	}
	seed, err := key.Seed()
	if err != nil {
		return natsauth.AgentCredentials{}, nil, fault.Wrap(err, errcode.Internal, "create the agent's key")
	}
	response, err := api.Agents.RegisterAgent(ctx,
		connect.NewRequest(&statev1.RegisterAgentRequest{Name: name, ProjectId: project, CurvePublicKey: key.Public()}))
	if err != nil {
		return natsauth.AgentCredentials{}, nil, err
	}
	made := response.Msg
	return natsauth.AgentCredentials{
		ServerURLs: made.GetNatsUrls(),
		Cell:       topology.Cell(made.GetCell()),
		AgentID:    made.GetAgent().GetId(),
		Token:      made.GetToken(),
		CurveSeed:  seed.Reveal(),
		SealerKey:  made.GetSealerPublicKey(),
		CA:         made.GetNatsCa(),

		NamespacePrefix: made.GetAgent().GetNamespacePrefix(),
	}, made.GetAgent(), nil
}

// writeClient writes the client configuration file.
func (s *Stack) writeClient() error {
	relayCAFile := ""
	if s.opts.Relays > 0 {
		relayCAFile = s.relayKeys.CertFile
	}
	return client.Config{
		Server:          s.apiURL,
		DeploysServer:   s.DeploysURL(),
		RelayServer:     s.RelayURL(),
		RelayCAFile:     relayCAFile,
		RunnersServer:   s.RunnersURL(),
		GatewayCAFile:   s.gateway.certFile,
		AdmissionServer: s.AdmissionURL(),
		TokenFile:       s.keys.AdminTokenFile,
		Cell:            string(s.opts.Cell),
		NATSURL:         s.natsURL(),
		NATSSeedFile:    natsauth.SeedFile(s.natsDir(), natsauth.PrincipalOperator),
	}.Write(s.ClientFile())
}
