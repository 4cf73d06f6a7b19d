package state

import (
	"context"
	"errors"
	"fmt"
	"sync"

	natsgo "github.com/nats-io/nats.go"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/postgres"
)

// parts of the service: what begins when, and what is waited for.
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
		{Name: "streams", StartAfter: []string{"nats"}, Run: p.keepStreams},
		{Name: "bootstrap", StartAfter: []string{"database"}, Run: func(ctx context.Context, _ *service.Handle) error {
			if err := bootstrap(ctx, p.cfg, p.directory); err != nil {
				return err
			}
			return p.directory.TellAgentsAnew(ctx)
		}},
		{Name: "agents", StartAfter: []string{"bootstrap", "streams"}, Run: p.admitAgents},
		{Name: "outbox", StartAfter: []string{"database", "streams"}, Run: ready(p.publisher.Run), Check: p.publisher.Check},
		{Name: "changes", StartAfter: []string{"database"}, Run: func(ctx context.Context, self *service.Handle) error {
			return p.changes.Run(ctx, self.Ready)
		}},
		{Name: "keys", StartAfter: []string{"bootstrap"}, Run: func(ctx context.Context, self *service.Handle) error {
			return p.keyring.Run(ctx, self.Ready)
		}},
		// Agents come in when their consumers are there.
		{Name: "callout", StartAfter: []string{"agents", "nats-callout"}, Run: ready(p.responder.Run)},
		{Name: "secrets", StartAfter: []string{"database", "nats"}, Run: func(ctx context.Context, self *service.Handle) error {
			return p.secretary.Run(ctx, self.Ready)
		}},
		{Name: "background", StopBefore: []string{"nats-system"}, Run: ready(p.background.wait)},
		p.openedAPI(),
	}, p.ingest...)
}

// openedAPI serves calls from the moment that there is something to read and write.
func (p *process) openedAPI() service.Part {
	api := p.api
	api.StartAfter = []string{"bootstrap", "changes", "keys"}
	return api
}

// ready runs what is ready as soon as it runs.
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

// keepStreams makes the streams, and what relays keep in the memory of NATS again whenever NATS may have been started again.
func (p *process) keepStreams(ctx context.Context, self *service.Handle) error {
	connected := p.conn.StatusChanged(natsgo.CONNECTED)
	defer p.conn.RemoveStatusListener(connected)
	options := topology.Options{Replicas: p.cfg.Streams.Replicas, StorageBytes: int64(p.cfg.Streams.Storage)}
	if err := topology.Ensure(ctx, p.agents.Streams, p.agents.Cell, options); err != nil {
		return fmt.Errorf("make the streams: %w", err)
	}
	self.Ready()
	for {
		select {
		case _, open := <-connected:
			if !open {
				return nil
			}
			if err := topology.EnsureRelays(ctx, p.agents.Streams, options); err != nil {
				return fmt.Errorf("make again what NATS has lost: %w", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// admitAgents makes sure of the consumers of every agent and subscriber, which a restored NATS may lack, and one that was away when an agent was registered: when the service begins, and
// whenever that has happened.
func (p *process) admitAgents(ctx context.Context, self *service.Handle) error {
	for {
		if err := errors.Join(p.admitAll(ctx), p.admitSubscribers(ctx)); err != nil {
			return err
		}
		self.Ready()
		select {
		case <-p.agents.Again:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *process) admitAll(ctx context.Context) error {
	for page := (postgres.Page{Size: 500}); ; {
		found, err := p.directory.Agents(ctx, nil, page)
		if err != nil {
			return fmt.Errorf("list agents: %w", err)
		}
		for _, a := range found {
			if a.Revoked {
				continue
			}
			if err := p.agents.Admit(ctx, a.ID); err != nil {
				return fmt.Errorf("agents: %w", err)
			}
		}
		if len(found) < page.Size {
			return nil
		}
		page.After = found[len(found)-1].ID
	}
}

func (p *process) admitSubscribers(ctx context.Context) error {
	present := map[string]bool{}
	for page := (postgres.Page{Size: 500}); ; {
		found, err := p.directory.Subscribers(ctx, page)
		if err != nil {
			return fmt.Errorf("list subscribers: %w", err)
		}
		for _, s := range found {
			if s.Revoked {
				continue
			}
			present[s.Name] = true
			if err := p.subscribers.Admit(ctx, s); err != nil {
				return fmt.Errorf("subscribers: %w", err)
			}
		}
		if len(found) < page.Size {
			break
		}
		page.After = found[len(found)-1].ID
	}
	if err := p.subscribers.ForgetOthers(ctx, present); err != nil {
		return fmt.Errorf("subscribers: %w", err)
	}
	return nil
}

// background runs work that outlives the call that began it.
type background struct {
	work chan func(ctx context.Context)
}

// backgroundQueue is how much work may wait to be begun, which takes no time.
const backgroundQueue = 64

func newBackground() *background {
	return &background{work: make(chan func(context.Context), backgroundQueue)}
}

// run gives the work to the service. What has not begun when the service stops is dropped: nothing in the background may be needed.
func (b *background) run(work func(ctx context.Context)) {
	select {
	case b.work <- work:
	default:
	}
}

// wait starts what it is given, and at the end waits for it.
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
