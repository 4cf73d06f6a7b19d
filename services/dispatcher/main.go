package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/kubeclient"
	"lockstep.internal/libs/leader"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/kube"
	"lockstep.internal/services/dispatcher/nats"
)

// secretTimeout bounds one request for a Secret.
const secretTimeout = 5 * time.Second

// dispatcher is one process: the leader or a standby.
type dispatcher struct {
	cfg       Config
	agent     int64
	cell      topology.Cell
	policy    desired.Policy
	logger    *slog.Logger
	telemetry *telemetry.Telemetry
	metrics   *metrics
	conn      *natsconn.Conn
	js        jetstream.JetStream
	client    *kube.Client
	secrets   *nats.Secrets
	elector   *leader.Elector

	mu      sync.Mutex
	readErr error // why desired states are not read
}

// Main runs the dispatcher until ctx ends, then drains. It returns an error for an invalid
// configuration.
func Main(ctx context.Context, cfg Config) (err error) {
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: "dispatcher", Version: service.Version()})
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		err = errors.Join(err, tel.Close(closing))
	}()
	d, err := newDispatcher(ctx, cfg, tel)
	if err != nil {
		return err
	}
	defer d.client.Close()
	defer d.conn.Close() // the part drains it; this is for a service that fails before it runs its parts
	return service.Run(
		ctx, service.Options{Name: "dispatcher", Config: cfg.Config, Logger: d.logger, Metrics: tel.Metrics},
		d.conn.Part(), service.Part{Name: "cluster", Check: d.client.Check},
		service.Part{Name: "dispatcher", StartAfter: []string{"nats", "cluster"}, Run: d.run, Check: d.check},
	)
}

func newDispatcher(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*dispatcher, error) {
	if err := validate(cfg); err != nil {
		return nil, err
	}
	credentials, err := natsauth.ReadAgentCredentials(cfg.CredentialsFile)
	if err != nil {
		return nil, err
	}
	key, err := seal.ParseKey(credentials.CurveSeed)
	if err != nil {
		return nil, fmt.Errorf("agent credentials: %w", err)
	}
	options, err := credentials.ConnectOptions()
	if err != nil {
		return nil, err
	}
	logger := tel.Logger.With(slog.Int64(logkey.AgentID, credentials.AgentID))
	m, err := newMetrics(tel.Metrics)
	if err != nil {
		return nil, err
	}
	level, _ := desired.ParsePodSecurity(cfg.PodSecurity)
	rest, err := kubeclient.Load(cfg.Kubeconfig, "")
	if err != nil {
		return nil, err
	}
	client, err := kube.NewClient(rest, logger)
	if err != nil {
		return nil, err
	}
	connection := natsconn.DefaultConfig()
	connection.URL = config.URL(strings.Join(credentials.ServerURLs, ","))
	connection.Name = fmt.Sprintf("dispatcher of agent %d", credentials.AgentID)
	conn, err := natsconn.Connect(ctx, connection, logger, options...)
	if err != nil {
		return nil, err
	}
	js, err := conn.JetStream()
	if err == nil {
		err = tel.Metrics.Register(conn.Collector())
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("dispatcher: %w", err)
	}
	return &dispatcher{
		cfg: cfg, agent: credentials.AgentID, cell: credentials.Cell,
		policy: desired.Policy{
			Agent: credentials.AgentID, NamespacePrefix: cfg.NamespacePrefix, PodSecurity: level, Kinds: cfg.AllowedKinds,
		},
		logger: logger, telemetry: tel, metrics: m, conn: conn, js: js, client: client,
		secrets: &nats.Secrets{
			Conn: conn.Conn, Cell: credentials.Cell, AgentID: credentials.AgentID, Key: key,
			SealerKey: credentials.SealerKey, Timeout: secretTimeout,
		},
		elector: leader.New(leader.Options{
			Config: cfg.Lease, Leases: client.Leases(), Namespace: kube.AgentNamespace(credentials.AgentID), Name: LeaseName,
			Identity: leader.NewIdentity(), Logger: logger,
			EnsureNamespace: func(ctx context.Context) error { return client.EnsureAgentNamespace(ctx, credentials.AgentID) },
		}),
	}, nil
}

// validate checks the configuration of programs that do not load it from a file.
func validate(cfg Config) error {
	binding, err := config.Bind(&cfg, "")
	if err != nil {
		return err
	}
	return binding.Validate()
}

// LeaseName is the name of the leader's Lease in the agent's namespace.
const LeaseName = "dispatcher"

// run takes part in the election until ctx ends.
func (d *dispatcher) run(ctx context.Context, part *service.Handle) error {
	part.Ready() // a standby is ready
	return d.elector.Run(ctx, part.DrainContext(), func(ctx, drain context.Context, _ bool) error {
		d.logger.InfoContext(ctx, "started leading")
		session := d.newLeaderSession()
		d.metrics.setLeading(session)
		defer d.metrics.setLeading(nil)
		return session.run(ctx, drain)
	})
}

func (d *dispatcher) setReadError(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.readErr = err
}

// maxWaiting is the number of unacknowledged results from which on the service is degraded.
const maxWaiting = 100

// check reports why desired states are not applied. A standby is ready, and shown as degraded.
func (d *dispatcher) check(context.Context) error {
	d.mu.Lock()
	readErr := d.readErr
	d.mu.Unlock()
	current := d.metrics.current.Load()
	switch {
	case current == nil && d.elector.Err() != nil:
		return d.elector.Err()
	case current == nil && d.elector.Holder() == "":
		return service.Degraded(errors.New("waiting for the lease"))
	case current == nil:
		return service.Degraded(fmt.Errorf("standby: %s holds the lease", d.elector.Holder()))
	case readErr != nil:
		return readErr
	case current.publisher.Waiting() > maxWaiting:
		return service.Degraded(fmt.Errorf("%d results are not published yet", current.publisher.Waiting()))
	default:
		return nil
	}
}
