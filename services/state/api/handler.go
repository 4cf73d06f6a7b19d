package api

import (
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/idrange"
	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/admin"
	"lockstep.internal/services/state/devfile"
	"lockstep.internal/services/state/ingest"
	"lockstep.internal/services/state/postgres"
	"lockstep.internal/services/state/publish"
)

// Dependencies of the API. All but Interceptors are required.
type Dependencies struct {
	Pool         *pgxpool.Pool
	Directory    *admin.Directory
	Workspaces   *postgres.Workspaces
	IngestStores *postgres.IngestStores
	Secrets      *postgres.Secrets
	Encoder      publish.Encoder
	Ingest       *ingest.Ingest
	Changes      *postgres.Changes
	// AccessChanges ends the streams of callers who lose access.
	AccessChanges *postgres.AccessChanges
	// StreamLifetime is the maximum lifetime of a stream; MaxTokensPerUser the maximum number of active tokens.
	StreamLifetime   time.Duration
	MaxTokensPerUser int
	// MaxAgentsPerProject limits active agents; see postgres.Directory.RegisterAgent.
	MaxAgentsPerProject int
	JetStream           jetstream.JetStream
	Agents              Agents
	Subscribers         Subscribers
	Endpoint            AgentEndpoint
	// NamespacePrefix is the prefix of workspace namespaces.
	NamespacePrefix string
	Rebuild         Rebuild
	DeadLetters     DeadLetters
	Issuer          Issuer
	Gateway         Gateway
	// Devfiles fetches the parents of devfiles.
	Devfiles devfile.Fetch
	Cell     topology.Cell
	// IDs are those that the cell gives.
	IDs    idrange.Range
	Logger *slog.Logger
	Now    func() time.Time
	// Interceptors, such as tracing. They run inside the fault interceptor and outside all others. Optional.
	Interceptors []connect.Interceptor
}

// maxRequest limits a decompressed message, in bytes.
const maxRequest = 4 << 20

// NewHandler returns the handler of every service of the API.
func NewHandler(d Dependencies) http.Handler {
	interceptors := append([]connect.Interceptor{fault.NewInterceptor(d.Logger)}, d.Interceptors...)
	sessions := newSessionCache(changedIn(d.AccessChanges.Subscribe())) // for as long as the process runs
	authn := &authentication{
		directory: d.Directory.Directory, sessions: sessions, lookups: newTokenLookups(), changes: d.AccessChanges,
		scopes: Scopes(), gateway: d.Gateway, streamLifetime: d.StreamLifetime, logger: d.Logger, now: d.Now,
	}
	options := connect.WithHandlerOptions(
		connect.WithInterceptors(append(interceptors, libpostgres.UnavailableInterceptor(), endReasons{})...),
		connect.WithReadMaxBytes(maxRequest),
	)
	access := access{directory: d.Directory}
	mux := http.NewServeMux()
	mux.Handle(statev1connect.NewDirectoryServiceHandler(&directoryService{access: access, sessions: sessions}, options))
	mux.Handle(
		statev1connect.NewTokenServiceHandler(
			&tokenService{
				access: access, issuer: d.Issuer, sessions: sessions, maxTokens: d.MaxTokensPerUser, now: d.Now, cell: d.Cell,
			},
			options,
		),
	)
	mux.Handle(statev1connect.NewAgentServiceHandler(&agentService{
		access:       access,
		pool:         d.Pool,
		ingestStores: d.IngestStores,
		ingest:       d.Ingest,
		now:          d.Now,
		agents:       d.Agents,
		maxAgents:    d.MaxAgentsPerProject,
		endpoint:     d.Endpoint,
		prefix:       d.NamespacePrefix,
		sealerKey:    d.Secrets.Vault.PublicKey(),
		logger:       d.Logger,
	}, options))
	mux.Handle(statev1connect.NewTemplateServiceHandler(&templateService{access: access}, options))
	workspaces := &workspaceService{
		access:        access,
		prefix:        d.NamespacePrefix,
		accessChanges: d.AccessChanges,
		pool:          d.Pool,
		workspaces:    d.Workspaces,
		ingestStores:  d.IngestStores,
		secrets:       d.Secrets,
		devfiles:      d.Devfiles,
		encoder:       d.Encoder,
		changes:       d.Changes,
		jetStream:     d.JetStream,
		cell:          d.Cell,
		now:           d.Now,
	}
	mux.Handle(statev1connect.NewWorkspaceServiceHandler(workspaces, options))
	mux.Handle(statev1connect.NewWorkspaceAccessServiceHandler(&workspaceAccessService{
		access: access, pool: d.Pool, workspaces: d.Workspaces, encoder: d.Encoder, now: d.Now, service: workspaces,
	}, options))
	mux.Handle(statev1connect.NewSSHKeyServiceHandler(&sshKeyService{access: access, now: d.Now}, options))
	mux.Handle(statev1connect.NewPullSecretServiceHandler(
		&pullSecretService{access: access, pool: d.Pool, secrets: d.Secrets, now: d.Now}, options))
	mux.Handle(statev1connect.NewMoveServiceHandler(
		&moveService{access: access, cell: d.Cell, ids: d.IDs, sessions: sessions}, options,
	))
	mux.Handle(
		statev1connect.NewOperationServiceHandler(
			&operationService{access: access, rebuild: d.Rebuild, deadLetters: d.DeadLetters, now: d.Now}, options,
		),
	)
	mux.Handle(statev1connect.NewSubscriberServiceHandler(&subscriberService{
		access: access, subscribers: d.Subscribers, agents: d.Agents, endpoint: d.Endpoint, cell: d.Cell, logger: d.Logger,
	}, options))
	all := http.NewServeMux()
	all.Handle("/", authn.handler(mux))
	// Without sign-in: the command line asks where to sign in.
	all.Handle(statev1connect.NewGatewayServiceHandler(&gatewayService{url: d.Gateway.URL}, options))
	return all
}
