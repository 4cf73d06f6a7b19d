package runners

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/directory"
	"lockstep.internal/libs/topology"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/services/runners/arrival"
	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/move"
	"lockstep.internal/services/runners/postgres"
	"lockstep.internal/services/runners/rpc"
)

// openMoves opens what drives moves of organizations to other cells.
func (p *process) openMoves(context.Context) error {
	state, err := client("state.ca_file", p.cfg.State.CAFile, 0)
	if err != nil {
		return err
	}
	other, err := client("move.ca_file", p.cfg.Move.CAFile, 0)
	if err != nil {
		return err
	}
	p.state, p.otherCells = rpc.NewState(state, p.cfg.State.URL), other
	p.driver = &move.Driver{
		Pool: p.pool, Store: p.moves, State: p.state, Objects: p.objects, Map: mapWriter{p}, Logger: p.tel.Logger, Now: p.now,
		Target: func(m move.Move, token string) move.Target { return p.target(m.URL, token) },
	}
	return nil
}

func (p *process) target(url, token string) rpc.Target {
	return rpc.NewTarget(p.otherCells, url, token, p.cell())
}

// moveService returns what administrators do with moves.
func (p *process) moveService() *move.Service {
	missing := ""
	switch {
	case p.cfg.State.URL == "":
		missing = "state.url"
	case p.cfg.Cell.URL == "":
		missing = "cell.url"
	}
	return move.NewService(move.Config{
		Store: p.moves, Arrivals: p.arrivalStore(), Directory: p.state, Cell: p.cell(),
		Missing: missing, Caller: p.users.Caller, Runners: p.registry.All,
		Place: p.places().Place, Timeout: p.cfg.Move.Timeout, Now: p.now,
		Describe: func(ctx context.Context, url, token string) (*runnersv1.DescribeCellResponse, error) {
			return p.target(url, token).Describe(ctx)
		},
		Exists: func(organizationID int64) bool {
			_, found := p.directory.Place(directory.Scope{Kind: directory.Organization, ID: organizationID})
			return found
		},
	})
}

func (p *process) arrivalStore() postgres.Arrivals {
	return postgres.Arrivals{Moves: p.moves, CellNumber: p.cfg.Cell.Number}
}

// arrivals returns the handler that receives organizations from other cells.
func (p *process) arrivals(tracing connect.Interceptor) http.Handler {
	return arrival.NewHandler(arrival.Config{
		Cell: p.cell(), Store: p.arrivalStore(), State: p.state,
		Users: p.users, Objects: p.artifacts.Reserving(), Sizes: p.sizes(), Bounds: artifact.DefaultBounds(),
		Logger: p.tel.Logger, Interceptors: []connect.Interceptor{tracing},
	})
}

// announced returns what the cell map has of moves.
func (p *process) announced(ctx context.Context) (gone []cellmap.Move, back []int64, err error) {
	departures, err := p.moves.Announced(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range departures {
		gone = append(gone, cellmap.Move{
			From: p.cell(), Organization: m.OrganizationID, To: m.Cell, Number: m.Number,
		})
	}
	back, err = p.moves.Returned(ctx)
	return gone, back, err
}

// mapWriter writes the moves of this cell to the cell map.
type mapWriter struct{ process *process }

// PutMoved implements [move.Map].
func (w mapWriter) PutMoved(ctx context.Context, organizationID int64, to topology.Cell, number int64) error {
	_, err := cellmap.Writer{JetStream: w.process.mapJS}.PutMoved(ctx, cellmap.Move{
		From: w.process.cell(), Organization: organizationID, To: to, Number: number,
	})
	return err
}
