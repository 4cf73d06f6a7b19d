package relay

import (
	"context"
	"fmt"
	"sync"

	"lockstep.internal/libs/service"
	"lockstep.internal/services/relay/tunnel"
)

// parts of the service: what begins when, and what is waited for.
func (p *process) parts() []service.Part {
	p.cfg.OnListen = p.listening(p.cfg.OnListen)
	connection := p.conn.Part()
	connection.Name = "nats"
	users := p.directory.Part()
	users.StartAfter = []string{"nats"}
	p.agents.StopBefore = []string{"registry", "events"}
	p.agents.StartAfter = []string{"directory", "configurations"}
	p.internal.StopBefore = []string{"registry"}
	p.external.StopBefore = []string{"registry", "directory", "trail"}
	return []service.Part{
		connection, users,
		{Name: "configurations", StartAfter: []string{"nats"}, Run: func(ctx context.Context, self *service.Handle) error { return p.configurations.Run(ctx, self.Ready) }},
		{Name: "registry", StartAfter: []string{"nats"}, Run: func(ctx context.Context, self *service.Handle) error { return p.book.Run(ctx, self.Ready) }},
		{Name: "events", StopBefore: []string{"nats"}, Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return p.teller.Run(ctx, self.DrainContext())
		}},
		{Name: "trail", StopBefore: []string{"nats"}, Run: func(ctx context.Context, self *service.Handle) error {
			self.Ready()
			return p.trail.Run(ctx, self.DrainContext())
		}},
		service.Func("agents' access", func(ctx context.Context) error {
			p.intake.Run(ctx)
			return nil
		}),
		service.Func("callers' access", func(ctx context.Context) error {
			p.proxy.Run(ctx)
			return nil
		}),
		{Name: "tunnels", StopBefore: []string{"registry", "events"}, Run: p.holdTunnels},
		{Name: "requests", StopBefore: []string{"registry", "trail"}, Run: p.awaitRequests},
		p.agents, p.internal, p.external,
	}
}

// listening tells the registry where this relay listens for others.
func (p *process) listening(then func(map[string]string)) func(map[string]string) {
	return func(addresses map[string]string) {
		if p.cfg.Internal.URL == "" {
			url, err := internalURL(addresses["internal"], p.cfg.Internal.TLS.Enabled())
			if err != nil {
				p.tel.Logger.Error("other relays cannot reach this one", "error", err)
			}
			p.book.At(url)
		}
		if then != nil {
			then(addresses)
		}
	}
}

// holdTunnels until the relay is drained: then nobody is sent here any more, agents connect elsewhere, and what is open goes on to its end. That a connection has ended is told before
// this returns, and so before those end who pass it on.
func (p *process) holdTunnels(ctx context.Context, self *service.Handle) error {
	self.Ready()
	<-ctx.Done()
	err := p.book.Retire(self.DrainContext())
	var draining sync.WaitGroup
	for _, tunnels := range []*tunnel.Sessions{&p.ofAgents, &p.ofRelays} {
		draining.Go(func() { tunnels.Drain(self.DrainContext()) })
	}
	draining.Wait()
	p.intake.Drain(self.DrainContext())
	if err != nil {
		return fmt.Errorf("retire from the registry: %w", err)
	}
	return nil
}

// awaitRequests that the server of callers does not wait for, since their connections are not its own any more.
func (p *process) awaitRequests(ctx context.Context, self *service.Handle) error {
	self.Ready()
	<-ctx.Done()
	p.proxy.Drain(self.DrainContext())
	return nil
}
