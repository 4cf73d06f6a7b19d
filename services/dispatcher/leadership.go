package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"lockstep.internal/libs/event"
	"lockstep.internal/services/dispatcher/kube"
	"lockstep.internal/services/dispatcher/nats"
	"lockstep.internal/services/dispatcher/queue"
)

// flushTimeout is how long results may take to be acknowledged at the end of a leadership.
const flushTimeout = 5 * time.Second

// leadership is the time between winning the lease and giving it up. It begins with an empty memory and is told everything anew.
type leadership struct {
	queue      *queue.Queue[*job]
	publisher  *nats.Publisher
	reconciler *reconciler
	namespaces *kube.Namespaces
	cluster    *kube.Cluster
	desired    nats.Desired
	control    nats.Control
	repairs    *repairs
}

func (d *dispatcher) newLeadership() *leadership {
	clock := queue.SystemClock()
	work := queue.New[*job](clock, queue.Limits{Retries: d.cfg.Workers / 2, Repairs: d.cfg.Workers / repairShare, RepairPause: repairPause}) //nolint:mnd // half of the workers are for what is new
	publisher := nats.NewPublisher(d.js, d.cell, d.agent, d.logger)
	namespaces := kube.NewNamespaces(d.client, d.agent, work.Wake)
	cluster := kube.NewCluster(d.client, d.policy, namespaces)
	run := uuid.NewString()
	r := &reconciler{
		cell: d.cell, policy: d.policy, queue: work, clock: clock, cluster: cluster, secrets: d.secrets, publisher: publisher,
		origin:  origin{source: event.AgentSource(string(d.cell), d.agent, "dispatcher"), run: run},
		retry:   queue.Backoff{Min: d.cfg.RetryMin, Max: d.cfg.RetryMax},
		poll:    queue.Backoff{Min: pollMin, Max: pollMax},
		workers: d.cfg.Workers, timeout: d.cfg.ApplyTimeout, slowAfter: slowAfter,
		logger: d.logger.With(slog.String("run", run)), tracer: d.telemetry.Tracer, metrics: d.metrics,
	}
	repairs := newRepairs(clock, r.repair)
	return &leadership{
		queue: work, publisher: publisher, reconciler: r, namespaces: namespaces, cluster: cluster, repairs: repairs,
		control: nats.Control{
			Conn: d.conn.Conn, Agent: d.agent, Logger: d.logger, Since: time.Now(), Configure: repairs.configure, Resync: repairs.ask,
		},
		desired: nats.Desired{
			Conn: d.conn.Conn, Cell: d.cell, Agent: d.agent, Logger: d.logger, Take: r.take, Waiting: d.waiting,
		},
	}
}

const (
	pollMin   = 500 * time.Millisecond
	pollMax   = time.Minute
	slowAfter = 2 * time.Second

	// Repairs take one worker of four, and begin this far apart: ten thousand workspaces are gone through in some minutes.
	repairShare = 4
	repairPause = 20 * time.Millisecond
)

// run leads until ctx is done: it stops reading, finishes what is under way and tells its results. When work is done it drops all.
func (l *leadership) run(ctx, work context.Context) error {
	if err := l.cluster.Load(work); err != nil {
		return err
	}
	publishing, stopPublishing := context.WithCancel(work)
	defer stopPublishing()
	published := make(chan error, 1)
	go func() { published <- l.publisher.Run(publishing) }()

	group, reading := errgroup.WithContext(ctx)
	group.Go(func() error { return l.namespaces.Run(reading) })
	group.Go(func() error { return l.desired.Run(reading) })
	group.Go(func() error { return l.control.Run(reading) })
	group.Go(func() error { return l.repairs.run(reading) })
	group.Go(func() error {
		l.reconciler.run(reading, work)
		return nil
	})
	err := group.Wait()

	flushing, cancel := context.WithTimeout(publishing, flushTimeout)
	defer cancel()
	if flushErr := l.publisher.Flush(flushing); flushErr != nil {
		l.reconciler.logger.WarnContext(ctx, "results are not told; the next leader works them out anew", slog.Int("results", l.publisher.Waiting()))
	}
	stopPublishing()
	err = errors.Join(err, <-published)
	return err
}
