package state

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/postgres"
)

// parts lists the parts of the service with their start and stop order.
func (p *process) parts() []service.Part {
	named := func(name string, part service.Part) service.Part {
		part.Name = name
		return part
	}
	return append([]service.Part{
		named("nats", p.conn.Part()),
		named("nats-callout", p.callout.Part()),
		named("nats-system", p.system.Part()),
		{Name: "database", Run: p.migrate, Check: libpostgres.Check(p.pool)},
		{Name: "streams", StartAfter: []string{"nats"}, Run: p.ensureStreams},
		{Name: "bootstrap", StartAfter: []string{"database"}, Run: func(ctx context.Context, _ *service.Handle) error {
			if err := bootstrap(ctx, p.cfg, p.directory); err != nil {
				return err
			}
			if err := p.directory.UpgradeAgentEntries(ctx); err != nil {
				return err
			}
			if err := p.directory.UpgradeUserEntries(ctx); err != nil {
				return err
			}
			return libpostgres.InTx(ctx, p.pool, func(tx pgx.Tx) error { return p.republisher().FirstAccess(ctx, tx) })
		}},
		{Name: "agents", StartAfter: []string{"bootstrap", "streams"}, Run: p.ensureConsumers},
		{Name: "outbox", StartAfter: []string{"database", "streams"}, Run: ready(p.publisher.Run), Check: p.publisher.Check},
		{Name: "changes", StartAfter: []string{"database"}, Run: func(ctx context.Context, self *service.Handle) error {
			return p.changes.Run(ctx, self.Ready)
		}},
		{Name: "access", StartAfter: []string{"database"}, Run: func(ctx context.Context, self *service.Handle) error {
			return p.accessChanges.Run(ctx, self.Ready)
		}},
		{Name: "keys", StartAfter: []string{"bootstrap"}, Run: func(ctx context.Context, self *service.Handle) error {
			return p.keyring.Run(ctx, self.Ready)
		}},
		// Agents may connect when their consumers exist.
		{Name: "callout", StartAfter: []string{"agents", "nats-callout"}, Run: ready(p.responder.Run)},
		{
			Name:       "secrets",
			StartAfter: []string{"database", "nats"},
			Run: func(ctx context.Context, self *service.Handle) error {
				return p.secretResponder.Run(ctx, self.Ready)
			},
		},
		{Name: "consumers", StartAfter: []string{"streams"}, Run: func(ctx context.Context, self *service.Handle) error {
			return p.consumerResponder.Run(ctx, self.Ready)
		}},
		{Name: "judge", StartAfter: []string{"database"}, Run: ready(p.judge.Run)},
		{Name: "rerender", StartAfter: []string{"bootstrap"}, Run: ready(p.renderer.Run)},
		{Name: "meter", StartAfter: []string{"database", "streams"}, Run: ready(p.meter.Run)},
		{Name: "activity", StartAfter: []string{"database", "streams"}, Run: ready(p.activity.Run)},
		{Name: "silences", StartAfter: []string{"database", "streams"}, Run: ready(p.silences.Run)},
		{Name: "ended-tokens", StartAfter: []string{"database", "nats-system"}, Run: ready(p.endedTokens.Run)},
		{Name: "background", StopBefore: []string{"nats-system"}, Run: ready(p.background.wait)},
		p.apiPart(),
	}, p.ingest...)
}

// apiPart returns the API as a part that starts when the tables and the signing keys exist.
func (p *process) apiPart() service.Part {
	api := p.api
	api.StartAfter = []string{"bootstrap", "changes", "access", "keys"}
	return api
}

// ready adapts a part that is ready as soon as it runs.
func ready(run func(context.Context) error) func(context.Context, *service.Handle) error {
	return func(ctx context.Context, self *service.Handle) error {
		self.Ready()
		return run(ctx)
	}
}

func (p *process) migrate(ctx context.Context, _ *service.Handle) error {
	series, err := postgres.Migrations()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := libpostgres.Migrate(ctx, p.pool, p.tel.Logger, series...); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// ensureStreams creates the streams.
func (p *process) ensureStreams(ctx context.Context, _ *service.Handle) error {
	options := topology.Options{Replicas: p.cfg.Streams.Replicas, StorageBytes: int64(p.cfg.Streams.Storage)}
	if err := topology.Ensure(ctx, p.agents.JetStream, p.agents.Cell, options); err != nil {
		return fmt.Errorf("create the streams: %w", err)
	}
	return nil
}

// ensureConsumers creates missing consumers of agents and subscribers, at the start and on request. Some are missing
// after a restore of NATS, or if NATS was down during a registration.
func (p *process) ensureConsumers(ctx context.Context, self *service.Handle) error {
	for {
		if err := errors.Join(p.ensureAgents(ctx), p.ensureSubscribers(ctx)); err != nil {
			return err
		}
		self.Ready()
		select {
		case <-p.agents.EnsureRequests:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *process) ensureAgents(ctx context.Context) error {
	for page := (postgres.Page{Size: 500}); ; {
		found, err := p.directory.Agents(ctx, nil, page)
		if err != nil {
			return fmt.Errorf("list agents: %w", err)
		}
		for _, a := range found {
			if a.Revoked {
				continue
			}
			if err := p.agents.Ensure(ctx, a.ID); err != nil {
				return fmt.Errorf("agents: %w", err)
			}
		}
		if len(found) < page.Size {
			return nil
		}
		page.After = found[len(found)-1].ID
	}
}

func (p *process) ensureSubscribers(ctx context.Context) error {
	var present []directory.Subscriber
	for page := (postgres.Page{Size: 500}); ; {
		found, err := p.directory.Subscribers(ctx, page)
		if err != nil {
			return fmt.Errorf("list subscribers: %w", err)
		}
		for _, s := range found {
			if s.Revoked {
				continue
			}
			present = append(present, s)
			if err := p.subscribers.Ensure(ctx, s); err != nil {
				return fmt.Errorf("subscribers: %w", err)
			}
		}
		if len(found) < page.Size {
			break
		}
		page.After = found[len(found)-1].ID
	}
	if err := p.subscribers.RemoveOthers(ctx, present); err != nil {
		return fmt.Errorf("subscribers: %w", err)
	}
	return nil
}

// background runs work after the call that started it.
type background struct {
	work chan func(ctx context.Context)
}

// backgroundQueue limits the work that waits to start.
const backgroundQueue = 64

func newBackground() *background {
	return &background{work: make(chan func(context.Context), backgroundQueue)}
}

// enqueue queues optional work. It drops the work if the queue is full.
func (b *background) enqueue(work func(ctx context.Context)) {
	select {
	case b.work <- work:
	default:
	}
}

// wait starts queued work until ctx is done, and then waits for running work.
func (b *background) wait(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case work := <-b.work:
			running.Go(func() { work(ctx) })
		}
	}
}
