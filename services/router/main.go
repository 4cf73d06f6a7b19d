package router

import (
	"context"
	"fmt"
	"net/http"

	"go.opentelemetry.io/otel/propagation"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/natsconn"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/router/forward"
)

const serviceName = "router"

// Program describes the service for --help.
func Program() config.Program {
	return config.Program{
		Name: serviceName,
		About: "Gives runners, jobs and users of all cells one address: sends each request to the cell that its token " +
			"belongs to. It reads the cell map from the NATS of one cell.",
	}
}

// Main runs the service until ctx is done.
func Main(ctx context.Context, cfg Config) error {
	tel, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Options{Service: serviceName, Version: service.Version()})
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	defer tel.Close(context.WithoutCancel(ctx)) //nolint:errcheck // only the last spans are lost
	p, err := assemble(ctx, cfg, tel)
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	return service.Run(ctx,
		service.Options{Name: serviceName, Config: cfg.Config, Logger: tel.Logger, Metrics: tel.Metrics}, p.parts()...)
}

// process holds the adapters of the service.
type process struct {
	cfg     Config
	tel     *telemetry.Telemetry
	conn    *natsconn.Conn
	cells   *cellmap.Map
	handler *forward.Handler
}

func assemble(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*process, error) {
	p := &process{cfg: cfg, tel: tel}
	secure, err := cfg.Cells.tls()
	if err != nil {
		return nil, err
	}
	if err := p.connect(ctx); err != nil {
		return nil, err
	}
	p.handler = forward.NewHandler(forward.Config{
		Cells: p.cells, TLS: secure, MaxRequestsPerCell: cfg.Cells.MaxRequests,
		Breaker:     forward.BreakerConfig{Failures: cfg.Cells.Breaker.Failures, Open: cfg.Cells.Breaker.Open},
		BodyTimeout: cfg.Cells.BodyTimeout, ResponseTimeout: cfg.Cells.ResponseTimeout,
		Propagate: func(ctx context.Context, header http.Header) {
			tel.Propagator.Inject(ctx, propagation.HeaderCarrier(header))
		},
		Logger: tel.Logger,
	})
	if err := tel.Metrics.Register(p.handler); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return p, nil
}

// connect opens the connection to NATS and the cell map.
func (p *process) connect(ctx context.Context) error {
	cfg := p.cfg.NATS
	cfg.Name, cfg.InboxPrefix = serviceName, natsauth.InboxPrefix(natsauth.PrincipalRouter)
	var err error
	if p.conn, err = natsconn.Connect(ctx, cfg, p.tel.Logger); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if err := p.tel.Metrics.Register(p.conn.Collector()); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	js, err := p.conn.JetStream()
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if p.cells, err = cellmap.New(cellmap.Config{
		JetStream: js, Cell: topology.Cell(p.cfg.Cell.Name), Logger: p.tel.Logger,
	}); err != nil {
		return fmt.Errorf("cell map: %w", err)
	}
	return nil
}

// parts returns the parts of the service with their dependencies.
func (p *process) parts() []service.Part {
	const cells, forwarding = "cells", "forward"
	nats := p.conn.Part()
	nats.Check = p.checkNATS
	return []service.Part{
		nats,
		p.cells.Part(),
		service.Func(forwarding, func(ctx context.Context) error {
			p.handler.Run(ctx)
			return nil
		}),
		service.HTTPServer("api", p.cfg.API, p.traced(), service.HTTPOptions{
			Logger: p.tel.Logger, Metrics: p.tel.Metrics, StopBefore: []string{cells, forwarding},
		}),
	}
}

// checkNATS is degraded without NATS, if the last known map is in force. If it failed, all replicas would leave the
// service at the same time.
func (p *process) checkNATS(ctx context.Context) error {
	err := p.conn.Check(ctx)
	if p.cells.Ready() {
		return service.Degraded(err)
	}
	return err
}

// traced traces requests that belong to a trace. Runners send none.
func (p *process) traced() http.Handler {
	traced := p.tel.HTTP(p.handler)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header["Traceparent"]) > 0 {
			traced.ServeHTTP(w, r)
			return
		}
		p.handler.ServeHTTP(w, r)
	})
}
