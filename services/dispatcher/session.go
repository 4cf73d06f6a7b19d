package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/agentcontrol"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/retry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/dispatcher/kube"
	"lockstep.internal/services/dispatcher/nats"
	"lockstep.internal/services/dispatcher/queue"
)

// flushTimeout bounds the publishing of results at the end of a session.
const flushTimeout = 5 * time.Second

// leaderSession is the time between acquiring the lease and losing or releasing it. It starts
// without state and reads everything again.
type leaderSession struct {
	queue      *queue.Queue[*job]
	publisher  *nats.Publisher
	reconciler *reconciler
	namespaces *kube.Namespaces
	cluster    *kube.Cluster
	desired    nats.Desired
	control    *agentcontrol.Reader
	repairs    *repairs
}

func (d *dispatcher) newLeaderSession() *leaderSession {
	work := queue.New[*job](queue.Limits{
		Retries: d.cfg.Workers / 2, //nolint:mnd // half of the workers stay free for new work
		Repairs: d.cfg.Workers / repairShare, RepairPause: repairPause,
	})
	publisher := nats.NewPublisher(d.js, d.cell, d.agent, d.logger)
	namespaces := kube.NewNamespaces(d.client, d.agent, work.Wake)
	cluster := kube.NewCluster(d.client, d.policy, namespaces)
	run := uuid.NewString()
	r := &reconciler{
		cell: d.cell, policy: d.policy, queue: work, cluster: cluster, secrets: d.secrets, publisher: publisher,
		results: results{source: event.AgentSource(string(d.cell), d.agent, "dispatcher"), run: run},
		retry:   retry.Policy{Min: d.cfg.RetryMin, Max: d.cfg.RetryMax},
		poll:    retry.Policy{Min: pollMin, Max: pollMax},
		workers: d.cfg.Workers, timeout: d.cfg.ApplyTimeout, slowAfter: slowAfter,
		logger: d.logger.With(slog.String("run", run)), tracer: d.telemetry.Tracer, metrics: d.metrics,
	}
	repairs := newRepairs(r.repair)
	control := agentcontrol.NewReader(d.conn.Conn, topology.DispatcherConsumer(d.agent), d.logger)
	control.SkipResyncsBefore = time.Now() // a new leader applies everything anyway
	return &leaderSession{
		queue: work, publisher: publisher, reconciler: r, namespaces: namespaces, cluster: cluster, repairs: repairs,
		control: control,
		desired: nats.Desired{
			Conn: d.conn.Conn, AgentID: d.agent, Logger: d.logger, Receive: r.receive, SetError: d.setReadError,
		},
	}
}

const (
	pollMin   = 500 * time.Millisecond
	pollMax   = time.Minute
	slowAfter = 2 * time.Second

	// Repairs use one worker of four and start this far apart: 10,000 workspaces take some minutes.
	repairShare = 4
	repairPause = 20 * time.Millisecond
)

// run leads until ctx ends: it stops reading, finishes running tasks and publishes their results.
// It stops at once when drain ends.
func (l *leaderSession) run(ctx, drain context.Context) error {
	if err := l.cluster.Load(drain); err != nil {
		return err
	}
	publishing, stopPublishing := context.WithCancel(drain)
	defer stopPublishing()
	published := make(chan error, 1)
	go func() { published <- l.publisher.Run(publishing) }()

	group, reading := errgroup.WithContext(ctx)
	group.Go(func() error { return l.namespaces.Run(reading) })
	group.Go(func() error { return l.desired.Run(reading) })
	group.Go(func() error { return l.control.Run(reading, l.repairs) })
	group.Go(func() error { return l.repairs.run(reading) })
	group.Go(func() error {
		l.reconciler.run(reading, drain)
		return nil
	})
	err := group.Wait()

	flushing, cancel := context.WithTimeout(publishing, flushTimeout)
	defer cancel()
	if flushErr := l.publisher.Flush(flushing); flushErr != nil {
		l.reconciler.logger.WarnContext(ctx, "results not published; the next leader reports them again",
			slog.Int(logkey.Count, l.publisher.Waiting()), logkey.Error(flushErr))
	}
	stopPublishing()
	return errors.Join(err, <-published)
}
