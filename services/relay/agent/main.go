package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/kubeclient"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/services/relay/agent/kube"
	"lockstep.internal/services/relay/agent/link"
	"lockstep.internal/services/relay/agent/targets"
	"lockstep.internal/services/relay/tunnel"
)

// flushTimeout of the last spans.
const flushTimeout = 5 * time.Second

// gcPercent is high because little memory is in use and much is garbage.
const gcPercent = 400

// Names of the parts.
const (
	partRelays     = "relays"
	partKubernetes = "kubernetes"
)

// agent is one process.
type agent struct {
	cfg     Config
	id      int64
	logger  *slog.Logger
	metrics *metrics
	targets *targets.Table
	// workspaces that the gateway may reach.
	workspaces targets.Workspaces
	kube       *kube.Proxy // nil unless enabled
	streams    streamLimit
	// connectors, one for each connection with a relay.
	connectors []*link.Connector
	changed    chan struct{}
}

// Main runs the relay agent until ctx is done, and drains. It returns errors of the configuration.
func Main(ctx context.Context, cfg Config) (err error) {
	service.CollectGarbageAt(gcPercent)
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: "relay-agent", Version: service.Version()})
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		err = errors.Join(err, tel.Close(closing))
	}()
	a, err := newAgent(ctx, cfg, tel)
	if err != nil {
		return err
	}
	parts := []service.Part{{Name: partRelays, Run: a.run}}
	if a.kube != nil {
		parts[0].StopBefore = []string{partKubernetes}
		parts = append(parts, service.Part{
			Name: partKubernetes,
			Run: func(ctx context.Context, self *service.Handle) error {
				self.Ready()
				return a.kube.Run(ctx)
			},
			Check: func(ctx context.Context) error { return service.Degraded(a.kube.Check(ctx)) },
		})
	}
	return service.Run(ctx,
		service.Options{Name: "relay-agent", Config: cfg.Config, Logger: a.logger, Metrics: tel.Metrics}, parts...)
}

func newAgent(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*agent, error) {
	binding, err := config.Bind(&cfg, "")
	if err != nil {
		return nil, err
	}
	if err := binding.Validate(); err != nil { // tools/stack and tests fill Config without loading it
		return nil, err
	}
	credentials, err := natsauth.ReadAgentCredentials(cfg.CredentialsFile)
	if err != nil {
		return nil, err
	}
	allowed, err := targets.ParseAllowed(cfg.Targets.AllowedAddresses, credentials.NamespacePrefix)
	if err != nil {
		return nil, err
	}
	a := &agent{
		cfg: cfg, id: credentials.AgentID, logger: tel.Logger.With(slog.Int64(logkey.AgentID, credentials.AgentID)),
		targets: targets.NewTable(allowed),
		workspaces: targets.Workspaces{
			NamespacePrefix: credentials.NamespacePrefix, Domain: cfg.Targets.WorkspaceDomain,
		},
		streams: streamLimit{max: cfg.MaxStreams}, changed: make(chan struct{}, 1),
	}
	if a.metrics, err = newMetrics(a, tel.Metrics); err != nil {
		return nil, err
	}
	if cfg.Kubernetes.Enabled {
		restConfig, err := kubeclient.Load(cfg.Kubernetes.Kubeconfig, "")
		if err != nil {
			return nil, err
		}
		if a.kube, err = kube.New(restConfig, a.logger); err != nil {
			return nil, err
		}
	}
	return a, a.addConnectors(ctx)
}

// addConnectors makes a connector for each connection with a relay.
func (a *agent) addConnectors(ctx context.Context) error {
	unread := tunnel.NewBudget(int64(a.cfg.MaxUnread), nil)
	d := dialer{agent: a.id, credentials: a.cfg.CredentialsFile, pod: a.cfg.Pod, tls: a.cfg.Relay.TLS}
	for _, text := range a.cfg.Relay.URLs {
		url, err := tunnelURL(text)
		if err != nil {
			return err
		}
		if strings.HasPrefix(url, "ws:") {
			a.logger.WarnContext(ctx, "relay URL uses ws: the agent's token is sent unencrypted",
				slog.String(logkey.RelayURL, url))
		}
		for range a.cfg.Relay.Connections {
			a.connectors = append(a.connectors, link.NewConnector(link.Config{
				Relay:  url,
				Dial:   func(ctx context.Context) (tunnel.Connection, error) { return d.dial(ctx, url) },
				Accept: a.acceptStream, OnSession: a.followConfig,
				Tunnel:  tunnel.Config{MaxStreams: a.cfg.MaxStreams, Budget: unread},
				Backoff: a.cfg.Relay.backoff(), MaxAge: a.cfg.Relay.MaxAge, DrainTimeout: a.cfg.Relay.Linger,
				Logger: a.logger, OnOutcome: a.onOutcome,
			}))
		}
	}
	return nil
}

// onOutcome counts an outcome, and updates readiness.
func (a *agent) onOutcome(outcome link.Outcome) {
	a.metrics.connects.WithLabelValues(string(outcome)).Inc()
	select {
	case a.changed <- struct{}{}:
	default: // an update is pending
	}
}

// run runs all connectors until ctx is done, and waits for their drain.
func (a *agent) run(ctx context.Context, self *service.Handle) error {
	var running sync.WaitGroup
	for _, c := range a.connectors {
		running.Go(func() { c.Run(ctx, self.DrainContext()) })
	}
	for ctx.Err() == nil {
		if err := a.check(); err != nil {
			self.NotReady(err.Error())
		} else {
			self.Ready()
		}
		select {
		case <-a.changed:
		case <-ctx.Done():
		}
	}
	running.Wait()
	a.streams.closeAndWait()
	return nil
}

// connected counts open connections.
func (a *agent) connected() int {
	open := 0
	for _, c := range a.connectors {
		open += c.Status().Open
	}
	return open
}

var errNotConnected = errors.New("no connection with a relay yet")

// check returns an error if no relay connection is open.
func (a *agent) check() error {
	var failure error
	for _, c := range a.connectors {
		s := c.Status()
		if s.Open > 0 {
			return nil
		}
		if failure == nil && s.Err != nil {
			failure = fmt.Errorf("no connection with a relay: %w", s.Err)
		}
	}
	if failure == nil {
		return errNotConnected
	}
	return failure
}
