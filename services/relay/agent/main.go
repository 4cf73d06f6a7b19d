package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/kubeclient"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/services/relay/agent/kube"
	"lockstep.internal/services/relay/agent/link"
	"lockstep.internal/services/relay/agent/targets"
	"lockstep.internal/services/relay/tunnel"
)

// flushTimeout is how long the last spans may take to be sent.
const flushTimeout = 5 * time.Second

// gcPercent lets the heap grow to five times what is in use before it is swept, unless GOGC says something else: little is in use, and much is thrown away.
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
	book    *targets.Book
	kube    *kube.Proxy // nil where it is not enabled
	streams gate
	keepers []*link.Keeper
	changed chan struct{}
}

// Main runs the relay agent until ctx is done, and drains. An error before that is one of the configuration.
func Main(ctx context.Context, cfg Config) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
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
	return service.Run(ctx, service.Options{Name: "relay-agent", Config: cfg.Config, Logger: a.logger, Metrics: tel.Metrics}, parts...)
}

func newAgent(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*agent, error) {
	binding, err := config.Bind(&cfg, "")
	if err != nil {
		return nil, err
	}
	if err := binding.Validate(); err != nil { // for programs that fill the configuration themselves
		return nil, err
	}
	credentials, err := natsauth.ReadAgentCredentials(cfg.CredentialsFile)
	if err != nil {
		return nil, err
	}
	allowed, err := targets.ParseAllowed(cfg.Targets.AllowedAddresses)
	if err != nil {
		return nil, err
	}
	a := &agent{
		cfg: cfg, id: credentials.AgentID, logger: tel.Logger.With(slog.Int64("agent_id", credentials.AgentID)), book: targets.NewBook(allowed),
		streams: gate{most: cfg.MaxStreams}, changed: make(chan struct{}, 1),
	}
	if a.metrics, err = newMetrics(a, tel.Metrics); err != nil {
		return nil, err
	}
	if cfg.Kubernetes.Enabled {
		described, err := kubeclient.Load(cfg.Kubernetes.Kubeconfig, "")
		if err != nil {
			return nil, err
		}
		if a.kube, err = kube.New(described, a.logger); err != nil {
			return nil, err
		}
	}
	return a, a.keep(ctx)
}

// keep makes who keeps the connections.
func (a *agent) keep(ctx context.Context) error {
	d := dialer{agent: a.id, credentials: a.cfg.CredentialsFile, pod: a.cfg.Pod, tls: a.cfg.Relay.TLS}
	for _, text := range a.cfg.Relay.URLs {
		url, err := tunnelURL(text)
		if err != nil {
			return err
		}
		if strings.HasPrefix(url, "ws:") {
			a.logger.WarnContext(ctx, "the connection with this relay is not encrypted: whoever is between reads the agent's token", slog.String("relay_url", url))
		}
		for range a.cfg.Relay.Connections {
			a.keepers = append(a.keepers, link.NewKeeper(link.Config{
				Relay:  url,
				Dial:   func(ctx context.Context) (link.Connection, error) { return d.dial(ctx, url) },
				Accept: a.take, Attend: a.follow,
				Tunnel: tunnel.Config{MaxStreams: a.cfg.MaxStreams},
				Pauses: a.cfg.Relay.pauses(), Age: a.cfg.Relay.MaxAge, Linger: a.cfg.Relay.Linger,
				Logger: a.logger, Changed: a.note,
			}))
		}
	}
	return nil
}

// note has readiness looked at.
func (a *agent) note(outcome link.Outcome) {
	a.metrics.connects.WithLabelValues(string(outcome)).Inc()
	select {
	case a.changed <- struct{}{}:
	default: // it will be
	}
}

// run keeps connections until ctx is done, and drains them.
func (a *agent) run(ctx context.Context, self *service.Handle) error {
	var keeping sync.WaitGroup
	for _, k := range a.keepers {
		keeping.Go(func() { k.Run(ctx, self.DrainContext()) })
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
	keeping.Wait()
	a.streams.close()
	return nil
}

// connected is with how many relays there are connections.
func (a *agent) connected() int {
	open := 0
	for _, k := range a.keepers {
		open += k.Status().Open
	}
	return open
}

var errNotYet = errors.New("no connection with a relay yet")

// check says why no relay reaches the agent.
func (a *agent) check() error {
	var why error
	for _, k := range a.keepers {
		s := k.Status()
		if s.Open > 0 {
			return nil
		}
		if why == nil && s.Err != nil {
			why = fmt.Errorf("no connection with a relay: %w", s.Err)
		}
	}
	if why == nil {
		return errNotYet
	}
	return why
}
