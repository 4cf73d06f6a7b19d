package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"lockstep.internal/libs/agentcontrol"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/leader"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/watcher/filter"
	"lockstep.internal/services/watcher/kube"
	"lockstep.internal/services/watcher/nats"
	"lockstep.internal/services/watcher/report"
	"lockstep.internal/services/watcher/session"
)

const (
	component = "watcher"
	leaseName = "watcher"
)

// GCPercent is the GOGC of the process. It is low because most memory is held by objects that rarely change.
const GCPercent = 80

// Program describes the command line.
func Program() config.Program {
	return config.Program{
		Name: "lockstep-watcher",
		About: "Watches the objects of one agent in a Kubernetes cluster and reports them as events: every change at once, " +
			"and all objects on start, at an interval and on request. It needs the agent's credentials file and a " +
			"ServiceAccount or kubeconfig with the permissions in deploy/rbac/watcher.yaml. Several replicas may run; " +
			"one of them reports.",
	}
}

// Namespace returns the agent's own namespace, which holds its Leases and the dispatcher's inventory.
func Namespace(agent int64) string { return "lockstep-agent-" + strconv.FormatInt(agent, 10) }

// Main runs a watcher until ctx is done and everything in flight is acknowledged.
func Main(ctx context.Context, cfg Config) error {
	credentials, err := natsauth.ReadAgentCredentials(cfg.CredentialsFile)
	if err != nil {
		return fault.Wrap(err, errcode.InvalidArgument, "invalid agent credentials")
	}
	tel, err := telemetry.Open(ctx, cfg.Telemetry,
		telemetry.Options{Service: component, Version: service.Version(), Out: cfg.Log})
	if err != nil {
		return fmt.Errorf("watcher: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tel.Close(closing) // a failure to send the last spans is ignored
	}()
	conn, err := connect(ctx, cfg.CredentialsFile, credentials, tel)
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

func connect(
	ctx context.Context,
	file string,
	credentials natsauth.AgentCredentials,
	tel *telemetry.Telemetry,
) (*natsconn.Conn, error) {
	cfg := natsconn.DefaultConfig()
	cfg.URL = config.URL(strings.Join(credentials.ServerURLs, ","))
	cfg.Name = component + "-" + strconv.FormatInt(credentials.AgentID, 10)
	options, err := credentials.ConnectOptionsFrom(file, tel.Logger)
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

// watcher is one process: a standby or the leader.
type watcher struct {
	cfg       Config
	reporter  report.Reporter // ClusterUID is set per session
	conn      *natsconn.Conn
	publisher *nats.Publisher
	cluster   *kube.Client
	elector   *leader.Elector
	logger    *slog.Logger
	tel       *telemetry.Telemetry
	metrics   *session.Metrics
	workloads *session.Workloads // nil if disabled

	session atomic.Pointer[session.Session] // nil on a standby
	fault   atomic.Pointer[error]           // why the last session ended
	readErr atomic.Pointer[error]           // why CONTROL is not read
}

func newWatcher(
	cfg Config, credentials natsauth.AgentCredentials, conn *natsconn.Conn, tel *telemetry.Telemetry,
) (*watcher, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	w := &watcher{
		cfg: cfg, conn: conn, tel: tel,
		reporter: report.Reporter{Cell: credentials.Cell, Agent: credentials.AgentID},
		logger:   tel.Logger.With(slog.Int64(logkey.AgentID, credentials.AgentID)),
	}
	var err error
	if w.cluster, err = kube.NewClient(cfg.Kubernetes, Program().Name+"/"+service.Version(), w.logger); err != nil {
		return nil, err
	}
	w.elector = w.cluster.NewElector(cfg.Lease, kube.LeaseOptions{
		Namespace: Namespace(w.reporter.Agent), Name: leaseName, Installation: credentials.SealerKey,
		Identity: leader.NewIdentity(),
		VersionDecreased: func() {
			if s := w.session.Load(); s != nil {
				s.Cancel(session.ErrVersionsDecreased)
			}
		},
	})
	if w.publisher, err = nats.NewPublisher(conn.Conn, cfg.Publish.AckTimeout); err != nil {
		return nil, err
	}
	if cfg.Workloads.Enabled {
		selection, err := filter.NewSelection(cfg.Workloads.Namespaces, cfg.Workloads.Selector)
		if err != nil {
			return nil, err
		}
		w.workloads = &session.Workloads{Selection: selection, Annotations: cfg.Workloads.Annotations}
	}
	if w.metrics, err = session.NewMetrics(tel.Metrics, w.session.Load); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *watcher) parts() []service.Part {
	return []service.Part{
		// A process that cannot reach NATS must not become the leader.
		{Name: "leader", StartAfter: []string{"nats"}, Run: w.elect, Check: w.checkLeader},
		{Name: "kubernetes", Check: w.cluster.Check},
		{Name: "backlog", Check: w.checkBacklog},
	}
}

// elect takes part in the leader election until ctx is done.
func (w *watcher) elect(ctx context.Context, handle *service.Handle) error {
	namespace := Namespace(w.reporter.Agent)
	if err := w.cluster.EnsureNamespace(ctx, namespace); err != nil {
		return fmt.Errorf("create the agent's namespace: %w", err)
	}
	handle.Ready()
	first := true
	return w.elector.Run(ctx, handle.DrainContext(), func(ctx, drain context.Context, tookOver bool) error {
		cause := events.ResyncCauseLeaderElected
		if first && !tookOver {
			cause = events.ResyncCauseStart
		}
		first = false
		w.lead(ctx, drain, cause)
		return nil
	})
}

// lead runs sessions, one after the other, until ctx is done.
func (w *watcher) lead(ctx, drain context.Context, cause events.ResyncCause) {
	w.logger.InfoContext(ctx, "became the leader", slog.String(logkey.Cause, string(cause)))
	defer w.fault.Store(nil)
	for n := 1; ctx.Err() == nil; n++ {
		started := time.Now()
		err := w.runSession(ctx, drain, cause)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			err = errors.New("the session ended")
		}
		if time.Since(started) > session.Retries().Max {
			n = 1
		}
		delay := session.Retries().Delay(n)
		w.fault.Store(&err)
		w.logger.WarnContext(ctx, "the session failed; starting another",
			logkey.Error(err), slog.Duration(logkey.RetryIn, delay))
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
	}
	w.logger.InfoContext(ctx, "stopped leading")
}

func (w *watcher) runSession(ctx, drain context.Context, cause events.ResyncCause) error {
	uid, err := w.cluster.ClusterUID(ctx)
	if err != nil {
		return fmt.Errorf("identify the cluster: %w", err)
	}
	control := agentcontrol.NewReader(w.conn.Conn, topology.WatcherConsumer(w.reporter.Agent), w.logger)
	control.SetError = func(err error) { w.readErr.Store(&err) }
	reporter := w.reporter
	reporter.ClusterUID = uid
	s := session.New(ctx, session.Options{
		Cluster: w.cluster, Publisher: w.publisher, Control: control, Reporter: reporter, Workloads: w.workloads,
		Cause: cause, Interval: w.cfg.FullResyncInterval, TickInterval: w.cfg.TickInterval,
		ConfigTimeout: w.cfg.ConfigTimeout,
		Window:        w.cfg.Publish.Window, MaxMessage: int(w.cfg.Publish.MaxMessage),
		Clock: w.cfg.Clock, Logger: w.logger, Tracer: w.tel.Tracer, Metrics: w.metrics, Drain: drain,
	})
	w.metrics.SessionStarted()
	w.fault.Store(nil)
	w.session.Store(s)
	defer w.session.Store(nil)
	return s.Run()
}

// checkLeader reports a standby as ready.
func (w *watcher) checkLeader(context.Context) error {
	if s := w.session.Load(); s != nil {
		err := s.Err()
		if silent := w.readErr.Load(); silent != nil {
			err = errors.Join(err, *silent)
		}
		return err
	}
	if fault := w.fault.Load(); fault != nil {
		return *fault
	}
	if err := w.elector.Err(); err != nil {
		return err
	}
	if holder := w.elector.Holder(); holder != "" {
		return service.Degraded(fmt.Errorf("standby: %s is the leader", holder))
	}
	return service.Degraded(errors.New("standby: there is no leader yet"))
}

func (w *watcher) checkBacklog(context.Context) error {
	s := w.session.Load()
	if s == nil {
		return nil
	}
	if pending, age := s.Backlog(); age > w.cfg.Publish.MaxBacklogAge {
		return fmt.Errorf("%d observations are not acknowledged, the oldest for %s", pending, age.Round(time.Second))
	}
	return nil
}
