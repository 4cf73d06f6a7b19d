// Package session does the work of the leading dispatcher.
//
// A session lasts from acquiring the lease until losing or releasing it. It starts without state: it reads all desired
// states again and applies them.
package session

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/agentcontrol"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/dispatcher/desired"
	"lockstep.internal/services/dispatcher/kube"
	"lockstep.internal/services/dispatcher/metrics"
	"lockstep.internal/services/dispatcher/nats"
	"lockstep.internal/services/dispatcher/queue"
	"lockstep.internal/services/dispatcher/reconcile"
	"lockstep.internal/services/dispatcher/repair"
)

const (
	// flushTimeout is the maximum time to publish results at the end of a session.
	flushTimeout = 5 * time.Second

	pollMin   = 500 * time.Millisecond
	pollMax   = time.Minute
	slowAfter = 2 * time.Second

	// Repairs use at most a quarter of the workers. The pause between starts bounds the load: 10,000 workspaces take
	// about 4 minutes.
	repairShare = 4
	repairPause = 20 * time.Millisecond
)

// Config of a session. All fields without a default are required.
type Config struct {
	Cell      topology.Cell
	Policy    desired.Policy // of the agent
	Conn      *natsconn.Conn
	JetStream jetstream.JetStream
	Client    *kube.Client
	Secrets   kube.SecretSource
	// Workers is the number of concurrent attempts, ApplyTimeout the timeout of one.
	Workers      int
	ApplyTimeout time.Duration
	// Retry is the back-off after a failed attempt.
	Retry retry.Policy
	// PublishTimeout is the time after which an unacknowledged result is published again. Defaults to 3 s.
	PublishTimeout time.Duration
	// SetReadError is called with the reason why a stream cannot be read, and with nil once it can.
	SetReadError func(stream string, err error)
	Logger       *slog.Logger
	Tracer       trace.Tracer
	Metrics      *metrics.Metrics
}

// Session is the work of one leader. It implements [metrics.Leader].
type Session struct {
	queue      *queue.Queue[*reconcile.Item]
	publisher  *nats.Publisher
	reconciler *reconcile.Reconciler
	namespaces *kube.Namespaces
	cluster    *kube.Cluster
	desired    nats.DesiredReader
	control    *agentcontrol.Reader
	repairs    *repair.Scheduler
}

// New returns a session that starts with [Session.Run].
func New(cfg Config) *Session {
	agent := cfg.Policy.Agent
	work := queue.New[*reconcile.Item](queue.Limits{
		Retries: cfg.Workers / 2, //nolint:mnd // half of the workers stay free for new work
		Repairs: cfg.Workers / repairShare, RepairPause: repairPause,
	})
	publisher := nats.NewPublisher(cfg.JetStream, cfg.Cell, agent, cfg.PublishTimeout, cfg.Logger)
	namespaces := kube.NewNamespaces(cfg.Client, agent, work.Wake)
	cluster := kube.NewCluster(cfg.Client, cfg.Policy, namespaces)
	id := uuid.NewString()
	r := &reconcile.Reconciler{
		Cell: cfg.Cell, Policy: cfg.Policy, Queue: work, Cluster: cluster, Secrets: cfg.Secrets, Publisher: publisher,
		Results: reconcile.Results{Source: event.AgentSource(string(cfg.Cell), agent, "dispatcher"), SessionID: id},
		Retry:   cfg.Retry,
		Poll:    retry.Policy{Min: pollMin, Max: pollMax},
		Workers: cfg.Workers, Timeout: cfg.ApplyTimeout, SlowAfter: slowAfter,
		Logger: cfg.Logger.With(slog.String(logkey.Run, id)), Tracer: cfg.Tracer, Metrics: cfg.Metrics,
	}
	control := agentcontrol.NewReader(cfg.Conn.Conn, topology.DispatcherConsumer(agent), cfg.Logger)
	control.SetError = func(err error) { cfg.SetReadError(topology.StreamControl, err) }
	control.SkipResyncsBefore = time.Now() // a new leader applies everything, so it ignores earlier resync requests
	return &Session{
		queue: work, publisher: publisher, reconciler: r, namespaces: namespaces, cluster: cluster,
		repairs: repair.NewScheduler(r.Repair), control: control,
		desired: nats.DesiredReader{
			Conn: cfg.Conn.Conn, AgentID: agent, Logger: cfg.Logger, Receive: r.Receive,
			SetError: func(err error) { cfg.SetReadError(topology.StreamDesired, err) },
		},
	}
}

// Depth implements [metrics.Leader].
func (s *Session) Depth() queue.Depth { return s.queue.Depth() }

// WaitingResults implements [metrics.Leader].
func (s *Session) WaitingResults() int { return s.publisher.Waiting() }

// Run works until ctx ends. Then it stops reading, finishes running tasks and publishes their results. It stops at
// once when drain ends.
func (s *Session) Run(ctx, drain context.Context) error {
	if err := s.cluster.Load(drain); err != nil {
		return err
	}
	publishing, stopPublishing := context.WithCancel(drain)
	defer stopPublishing()
	published := make(chan error, 1)
	go func() { published <- s.publisher.Run(publishing) }()

	group, reading := errgroup.WithContext(ctx)
	group.Go(func() error { return s.namespaces.Run(reading) })
	group.Go(func() error { return s.desired.Run(reading) })
	group.Go(func() error { return s.control.Run(reading, s.repairs) })
	group.Go(func() error { return s.repairs.Run(reading) })
	group.Go(func() error {
		s.reconciler.Run(reading, drain)
		return nil
	})
	err := group.Wait()

	flushing, cancel := context.WithTimeout(publishing, flushTimeout)
	defer cancel()
	if flushErr := s.publisher.Flush(flushing); flushErr != nil {
		s.reconciler.Logger.WarnContext(ctx, "results not published; the next leader reports them again",
			slog.Int(logkey.Count, s.publisher.Waiting()), logkey.Error(flushErr))
	}
	stopPublishing()
	return errors.Join(err, <-published)
}
