package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/config"
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

// secretExpiry is how long the control plane may take to answer one request for a Secret.
const secretExpiry = 5 * time.Second

// dispatcher is one process: it leads, or stands by.
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

	mu     sync.Mutex
	leader string // identity of who leads, as far as known
	self   string
	wait   error // why desired states are not read
}

// Main runs the dispatcher until ctx is done, and drains. An error before that is one of the configuration.
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
	defer d.conn.Close() // the part drains it; this is for a service that does not get to run its parts
	return service.Run(ctx, service.Options{Name: "dispatcher", Config: cfg.Config, Logger: d.logger, Metrics: tel.Metrics},
		d.conn.Part(),
		service.Part{Name: "cluster", Check: d.client.Check},
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
	logger := tel.Logger.With(slog.Int64("agent", credentials.AgentID))
	m, err := newMetrics(tel.Metrics)
	if err != nil {
		return nil, err
	}
	level, _ := desired.ParsePodSecurity(cfg.PodSecurity)
	rest, err := kube.LoadConfig(cfg.Kubeconfig)
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
		policy: desired.Policy{Agent: credentials.AgentID, NamespacePrefix: cfg.NamespacePrefix, PodSecurity: level, Kinds: cfg.AllowedKinds},
		logger: logger, telemetry: tel, metrics: m, conn: conn, js: js, client: client,
		secrets: &nats.Secrets{
			Conn: conn.Conn, Cell: credentials.Cell, Agent: credentials.AgentID, Key: key, Sealer: credentials.SealerKey, Expiry: secretExpiry,
		},
		self: identity(),
	}, nil
}

// validate is for programs that fill the configuration themselves.
func validate(cfg Config) error {
	binding, err := config.Bind(&cfg, "")
	if err != nil {
		return err
	}
	return binding.Validate()
}

// identity tells dispatchers apart: by machine for people, and for certain.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "_" + uuid.NewString()
}

// run waits for the lease and leads, again and again.
func (d *dispatcher) run(ctx context.Context, self *service.Handle) error {
	election := kube.Election{
		Client: d.client, Agent: d.agent, Identity: d.self, Logger: d.logger, Follow: d.follow,
		Timing: kube.Timing{Duration: d.cfg.Lease.Duration, RenewDeadline: d.cfg.Lease.RenewDeadline, RetryPeriod: d.cfg.Lease.RetryPeriod},
	}
	for ctx.Err() == nil {
		self.Ready() // standing by is all that is asked of one that does not lead
		err := election.Run(ctx, self.DrainContext(), d.lead)
		if err != nil && !errors.Is(err, kube.ErrLost) {
			return err
		}
		if err != nil {
			d.logger.WarnContext(ctx, "no longer leading", slog.String("error", err.Error()))
		}
	}
	return nil
}

func (d *dispatcher) lead(ctx, work context.Context) error {
	d.logger.InfoContext(ctx, "leading")
	current := d.newLeadership()
	d.metrics.leads(current)
	defer d.metrics.leads(nil)
	return current.run(ctx, work)
}

func (d *dispatcher) follow(leader string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leader = leader
}

func (d *dispatcher) waiting(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wait = err
}

// maxWaiting is how many results may wait for NATS before it is worth a word.
const maxWaiting = 100

// check says why nothing is dispatched. Standing by is shown, and no reason to be not ready.
func (d *dispatcher) check(context.Context) error {
	d.mu.Lock()
	leader, wait := d.leader, d.wait
	d.mu.Unlock()
	current := d.metrics.current.Load()
	switch {
	case current == nil && leader == "":
		return service.Degraded(errors.New("waiting for the lease"))
	case current == nil:
		return service.Degraded(fmt.Errorf("standing by: %s holds the lease", leader))
	case wait != nil:
		return wait
	case current.publisher.Waiting() > maxWaiting:
		return service.Degraded(fmt.Errorf("%d results wait to be told", current.publisher.Waiting()))
	default:
		return nil
	}
}
