package deploys

import (
	"context"
	"fmt"

	libpostgres "lockstep.internal/libs/postgres"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/deploys/nats"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/sink"
)

// parts of the service: what begins when, and what is waited for.
func (p *process) parts() []service.Part {
	connection := p.conn.Part()
	connection.Name = "nats"
	users := p.directory.Part()
	users.StartAfter = []string{"nats"}
	api := p.api
	api.StartAfter = []string{"database", "changes"}
	return []service.Part{
		connection,
		{Name: "database", Run: p.migrate, Check: libpostgres.Check(p.pool)},
		{Name: "streams", StartAfter: []string{"nats"}, Run: p.findStreams},
		users,
		{Name: "changes", StartAfter: []string{"database"}, Run: func(ctx context.Context, self *service.Handle) error {
			return p.changes.Run(ctx, self.Ready)
		}},
		nats.Part(p.consumer),
		p.mender.Part(),
		{
			Name: "sinks", StartAfter: []string{"database", "streams"}, Check: func(ctx context.Context) error { return service.Degraded(p.sinks.Check(ctx)) },
			Run: func(ctx context.Context, self *service.Handle) error {
				self.Ready()
				return p.sinks.Run(ctx)
			},
		},
		api,
	}
}

// findStreams waits until the streams are there: the service state makes them.
func (p *process) findStreams(ctx context.Context, _ *service.Handle) error {
	for _, name := range []string{topology.StreamObserved, topology.StreamDeploys, topology.StreamSinks, topology.StreamDirectory} {
		if _, err := p.js.Stream(ctx, name); err != nil {
			return fmt.Errorf("stream %s, which the service state makes: %w", name, err)
		}
	}
	return nil
}

func (p *process) migrate(ctx context.Context, _ *service.Handle) error {
	series, err := postgres.Migrations()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	sinks, err := sink.Migrations()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := libpostgres.Migrate(ctx, p.pool, p.tel.Logger, append(series, sinks)...); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}
