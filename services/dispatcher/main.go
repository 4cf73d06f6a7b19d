package dispatcher

import (
	"cmp"
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
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/seal"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/kube"
	"lockstep.internal/services/dispatcher/metrics"
	"lockstep.internal/services/dispatcher/nats"
	"lockstep.internal/services/dispatcher/session"
)

const (
	// secretTimeout is the timeout of one request for a Secret.
	secretTimeout = 5 * time.Second
	// flushTimeout is the maximum time to export the last spans.
	flushTimeout = 5 * time.Second
)

// dispatcher is one process: the leader or a standby.
type dispatcher struct {
	cfg       Config
	agent     int64
	cell      topology.Cell
	policy    desired.Policy
	logger    *slog.Logger
	telemetry *telemetry.Telemetry
	metrics   *metrics.Metrics
	conn      *natsconn.Conn
	js        jetstream.JetStream
	client    *kube.Client
	secrets   *nats.Secrets
	elector   *leader.Elector

	mu      sync.Mutex
	session *session.Session // nil in a standby
	readErr map[string]error // by stream: why it cannot be read, or nil
}

// Main runs the dispatcher until ctx ends, then drains. It returns an error for an invalid
// configuration.
func Main(ctx context.Context, cfg Config) error {
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: "dispatcher", Version: service.Version()})
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		_ = tel.Close(closing) // a failure to send the last spans is ignored
	}()
	d, err := newDispatcher(ctx, cfg, tel)
	if err != nil {
		return err
	}
	defer d.client.Close()
	defer d.conn.Close() // for errors before service.Run; after that conn.Part drains it
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
	logger := tel.Logger.With(slog.Int64(logkey.AgentID, credentials.AgentID))
	options, err := credentials.ConnectOptionsFrom(cfg.CredentialsFile, logger)
	if err != nil {
		return nil, err
	}
	m, err := metrics.New(tel.Metrics)
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
		readErr: map[string]error{},
		cfg:     cfg, agent: credentials.AgentID, cell: credentials.Cell,
		policy: desired.Policy{
			Agent: credentials.AgentID, NamespacePrefix: cmp.Or(cfg.NamespacePrefix, credentials.NamespacePrefix),
			PodSecurity: level, Kinds: cfg.AllowedKinds,
		},
		logger: logger, telemetry: tel, metrics: m, conn: conn, js: js, client: client,
		secrets: &nats.Secrets{
			Conn: conn.Conn, Cell: credentials.Cell, AgentID: credentials.AgentID, Key: key,
			SealerKey: credentials.SealerKey, Timeout: secretTimeout,
		},
		elector: leader.New(leader.Options{
			Config: cfg.Lease, Leases: client.Leases(), Namespace: kube.AgentNamespace(credentials.AgentID), Name: LeaseName,
			Installation: credentials.SealerKey, Identity: leader.NewIdentity(), Logger: logger,
			EnsureNamespace: func(ctx context.Context) error { return client.EnsureAgentNamespace(ctx, credentials.AgentID) },
		}),
	}, nil
}

// validate checks a configuration that was created in code and not by config.Load.
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
		s := d.newSession()
		d.setSession(s)
		defer d.setSession(nil)
		d.metrics.SetLeader(s)
		defer d.metrics.SetLeader(nil)
		return s.Run(ctx, drain)
	})
}

func (d *dispatcher) newSession() *session.Session {
	return session.New(session.Config{
		Cell: d.cell, Policy: d.policy, Conn: d.conn, JetStream: d.js, Client: d.client, Secrets: d.secrets,
		Workers: d.cfg.Workers, ApplyTimeout: d.cfg.ApplyTimeout,
		Retry:          retry.Policy{Min: d.cfg.RetryMin, Max: d.cfg.RetryMax},
		PublishTimeout: d.cfg.PublishTimeout,
		SetReadError:   d.setReadError, Logger: d.logger, Tracer: d.telemetry.Tracer, Metrics: d.metrics,
	})
}

func (d *dispatcher) setSession(s *session.Session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session = s
}

func (d *dispatcher) setReadError(stream string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.readErr[stream] = err
}

// maxWaiting is the number of results without an acknowledgement above which the service is degraded.
const maxWaiting = 100

// check reports why desired states are not applied. A standby is ready, and shown as degraded.
func (d *dispatcher) check(context.Context) error {
	d.mu.Lock()
	leading, readErr := d.session, errors.Join(d.readErr[topology.StreamDesired], d.readErr[topology.StreamControl])
	d.mu.Unlock()
	switch {
	case leading == nil && d.elector.Err() != nil:
		return d.elector.Err()
	case leading == nil && d.elector.Holder() == "":
		return service.Degraded(errors.New("waiting for the lease"))
	case leading == nil:
		return service.Degraded(fmt.Errorf("standby: %s holds the lease", d.elector.Holder()))
	case readErr != nil:
		return readErr
	case leading.WaitingResults() > maxWaiting:
		return service.Degraded(fmt.Errorf("%d results are not published yet", leading.WaitingResults()))
	default:
		return nil
	}
}
