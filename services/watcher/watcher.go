package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"k8s.io/utils/clock"

	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/kube"
	"lockstep.internal/services/watcher/nats"
)

// leaseName is the Lease that watchers of one agent contend for.
const leaseName = "watcher"

// Program describes the binary in its manual.
func Program() config.Program {
	return config.Program{
		Name: "lockstep-watcher",
		About: "Watches the objects of one agent in a Kubernetes cluster and reports them as events: what changes at once, and everything " +
			"on start, at an interval and on request. It needs the agent's credentials file and a ServiceAccount or kubeconfig with the " +
			"permissions in deploy/rbac/watcher.yaml. Several replicas may run; one of them reports.",
	}
}

// Namespace is where an agent keeps what is its own: its Leases and the dispatcher's inventory.
func Namespace(agent int64) string { return "lockstep-agent-" + strconv.FormatInt(agent, 10) }

// Main runs a watcher until ctx is done and everything in flight is acknowledged.
func Main(ctx context.Context, cfg Config) (err error) {
	credentials, err := natsauth.ReadAgentCredentials(cfg.CredentialsFile)
	if err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "the agent's credentials cannot be used")
	}
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: component, Version: service.Version(), Out: cfg.Log})
	if err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = errors.Join(err, tel.Close(closing))
	}()
	conn, err := connect(ctx, credentials, tel)
	if err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	defer conn.Close()
	w, err := newWatcher(cfg, credentials, conn, tel)
	if err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	defer w.publisher.Close()
	options := service.Options{Name: component, Config: cfg.Config, Logger: w.logger, Metrics: tel.Metrics}
	return service.Run(ctx, options, append(w.parts(), conn.Part())...)
}

func connect(ctx context.Context, credentials natsauth.AgentCredentials, tel *telemetry.Telemetry) (*natsconn.Conn, error) {
	cfg := natsconn.DefaultConfig()
	cfg.URL = config.URL(strings.Join(credentials.ServerURLs, ","))
	cfg.Name = component + "-" + strconv.FormatInt(credentials.AgentID, 10)
	options, err := credentials.ConnectOptions()
	if err != nil {
		return nil, err
	}
	conn, err := natsconn.Connect(ctx, cfg, tel.Logger, options...)
	if err != nil {
		return nil, err
	}
	if err := tel.Metrics.Register(conn.Collector()); err != nil {
		conn.Close()
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return conn, nil
}

// watcher is one process: a candidate, and the leader at times.
type watcher struct {
	cfg       Config
	agent     int64
	reporter  Reporter // without the cluster
	conn      *natsconn.Conn
	publisher *nats.Publisher
	cluster   *kube.Client
	elector   *kube.Elector
	logger    *slog.Logger
	tel       *telemetry.Telemetry
	metrics   *metrics
	selection Selection // of workloads

	current atomic.Pointer[term] // nil while another leads
	trouble atomic.Pointer[error]
}

func newWatcher(cfg Config, credentials natsauth.AgentCredentials, conn *natsconn.Conn, tel *telemetry.Telemetry) (*watcher, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	w := &watcher{
		cfg: cfg, agent: credentials.AgentID, conn: conn, tel: tel,
		reporter: Reporter{Cell: credentials.Cell, Agent: credentials.AgentID},
		logger:   tel.Logger.With(slog.Int64("agent_id", credentials.AgentID)),
	}
	identity, err := newIdentity()
	if err != nil {
		return nil, err
	}
	if w.cluster, err = kube.NewClient(cfg.Kubernetes, Program().Name+"/"+service.Version(), w.logger); err != nil {
		return nil, err
	}
	w.elector = w.cluster.NewElector(cfg.Lease, kube.Candidacy{
		Namespace: Namespace(w.agent), Name: leaseName, Labels: map[string]string{LabelAgent: strconv.FormatInt(w.agent, 10)},
		Identity: identity, Rewound: w.rewound,
	})
	if w.publisher, err = nats.NewPublisher(conn.Conn, cfg.Publish.AckTimeout); err != nil {
		return nil, err
	}
	if w.selection, err = NewSelection(cfg.Workloads.Namespaces, cfg.Workloads.Selector); err != nil {
		return nil, err
	}
	if w.metrics, err = newMetrics(tel.Metrics, w.current.Load); err != nil {
		return nil, err
	}
	return w, nil
}

// newIdentity is unique to this process, so that a restarted one does not take itself for the one before.
func newIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name this process for the election: %w", err)
	}
	id, err := uuid.NewRandom()
	if err != nil {
		return "", fmt.Errorf("name this process for the election: %w", err)
	}
	return host + "_" + id.String(), nil
}

func (w *watcher) parts() []service.Part {
	return []service.Part{
		// A candidate that cannot reach NATS could win and report nothing.
		{Name: "leader", StartAfter: []string{"nats"}, Run: w.stand, Check: w.checkLeader},
		{Name: "kubernetes", Check: func(context.Context) error { return w.elector.Err() }},
		{Name: "backlog", Check: w.checkBacklog},
	}
}

// stand takes part in the election until ctx is done.
func (w *watcher) stand(ctx context.Context, self *service.Handle) error {
	err := w.cluster.EnsureNamespace(ctx, Namespace(w.agent), map[string]string{LabelAgent: strconv.FormatInt(w.agent, 10)})
	if err != nil {
		return fmt.Errorf("the agent's own namespace: %w", err)
	}
	self.Ready()
	first := true
	return w.elector.Run(ctx, func(held context.Context, tookOver bool) {
		cause := events.ResyncCauseLeaderElected
		if first && !tookOver {
			cause = events.ResyncCauseStart
		}
		first = false
		w.lead(held, self.DrainContext(), cause)
	})
}

// lead reports, one term after the other, until ctx is done.
func (w *watcher) lead(ctx, finish context.Context, cause events.ResyncCause) {
	w.logger.InfoContext(ctx, "this process reports", slog.String("cause", string(cause)))
	defer w.trouble.Store(nil)
	for n := 1; ctx.Err() == nil; n++ {
		began := time.Now()
		err := w.term(ctx, finish, cause)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			err = errors.New("the term ended")
		}
		if time.Since(began) > maxDelay {
			n = 1
		}
		delay := backOff(n)
		w.trouble.Store(&err)
		w.logger.WarnContext(ctx, "cannot report, beginning anew", slog.String("error", err.Error()), slog.Duration("delay", delay))
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
	}
	w.logger.InfoContext(ctx, "this process reports no more")
}

func (w *watcher) term(ctx, finish context.Context, cause events.ResyncCause) error {
	uid, err := w.cluster.ClusterUID(ctx)
	if err != nil {
		return fmt.Errorf("which cluster this is: %w", err)
	}
	control, err := nats.NewControl(w.conn.Conn, w.agent, w.logger)
	if err != nil {
		return err
	}
	reporter := w.reporter
	reporter.ClusterUID = uid
	ctx, abandon := context.WithCancelCause(ctx)
	defer abandon(nil)
	t := &term{
		abandon: abandon, cluster: w.cluster, publisher: w.publisher, control: control, reporter: reporter,
		publish: w.cfg.Publish, ticks: w.cfg.TickInterval, clock: w.cfg.Clock,
		logger: w.logger, tracer: w.tel.Tracer, metrics: w.metrics, finish: finish,
		window: make(chan struct{}, w.cfg.Publish.Window),
	}
	t.scopes = append(t.scopes, t.workspaces(w.agent, NewPlan(cause, w.cfg.FullResyncInterval)))
	if followed := w.cfg.Workloads; followed.Enabled {
		t.scopes = append(t.scopes, t.workloads(w.selection, followed.Annotations, NewPlan(cause, w.cfg.FullResyncInterval)))
	}
	w.metrics.terms.Inc()
	w.trouble.Store(nil)
	w.current.Store(t)
	defer w.current.Store(nil)
	return t.run(ctx)
}

// rewound is called when the Lease tells of another history than the one that the term knows.
func (w *watcher) rewound() {
	if t := w.current.Load(); t != nil {
		t.abandon(errRewound)
	}
}

// checkLeader: a standby is ready, since it stands by for just this.
func (w *watcher) checkLeader(context.Context) error {
	if t := w.current.Load(); t != nil {
		return t.err()
	}
	if trouble := w.trouble.Load(); trouble != nil {
		return *trouble
	}
	if holder := w.elector.Holder(); holder != "" {
		return service.Degraded(fmt.Errorf("standby: %s reports", holder))
	}
	return service.Degraded(errors.New("standby: nobody reports yet"))
}

func (w *watcher) checkBacklog(context.Context) error {
	t := w.current.Load()
	if t == nil {
		return nil
	}
	if owed, age := t.backlog(); age > w.cfg.Publish.MaxBacklogAge {
		return fmt.Errorf("%d observations are not acknowledged, the oldest for %s", owed, age.Round(time.Second))
	}
	return nil
}
