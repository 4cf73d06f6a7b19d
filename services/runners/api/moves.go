package api

import (
	"context"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/topology"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
	"lockstep.internal/services/runners/move"
)

// Moves moves organizations to other cells; a [move.Service].
type Moves interface {
	Report(ctx context.Context, organizationID int64, to move.Destination, token string) (move.Result, error)
	Start(ctx context.Context, organizationID int64, to move.Destination, token string, startedBy int64) (move.Move, error)
	Get(ctx context.Context, organizationID int64) (move.Move, move.Counts, error)
	List(ctx context.Context) ([]move.Move, error)
	Cancel(ctx context.Context, organizationID int64) (move.Move, error)
	CancelArrival(ctx context.Context, organizationID int64, token string) (move.Move, error)
}

type moveService struct {
	runnersv1connect.UnimplementedMoveServiceHandler

	moves Moves
}

// maxUnserved is how many jobs without a runner a report names.
const maxUnserved = 100

func (s *moveService) ReportMove(
	ctx context.Context, r *connect.Request[runnersv1.ReportMoveRequest],
) (*connect.Response[runnersv1.ReportMoveResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	report, err := s.moves.Report(ctx, r.Msg.GetOrganizationId(), move.Destination{
		Cell: topology.Cell(r.Msg.GetToCell()), URL: r.Msg.GetToUrl(), Token: r.Msg.GetToToken(),
	}, r.Msg.GetToken())
	if err != nil {
		return nil, err
	}
	out := &runnersv1.ReportMoveResponse{
		Unserved: int64(len(report.Unserved)), RunnerIdsStaying: report.Staying, RunningJobs: report.Counts.Running,
		WaitingJobs: int64(report.Waiting), Pipelines: report.Counts.Pipelines, Runners: int64(report.Runners),
		Artifacts: report.Counts.Artifacts, ArtifactBytes: report.Counts.ArtifactBytes,
		Agents: report.Agents, Workspaces: report.Workspaces,
	}
	for _, j := range report.Unserved[:min(len(report.Unserved), maxUnserved)] {
		out.UnservedJobs = append(out.UnservedJobs, &runnersv1.UnservedJob{Id: j.ID, Name: j.Name, Tags: j.Tags})
	}
	return connect.NewResponse(out), nil
}

func (s *moveService) StartMove(
	ctx context.Context, r *connect.Request[runnersv1.StartMoveRequest],
) (*connect.Response[runnersv1.StartMoveResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	caller, _ := access.CallerFrom(ctx)
	m, err := s.moves.Start(ctx, r.Msg.GetOrganizationId(), move.Destination{
		Cell: topology.Cell(r.Msg.GetToCell()), URL: r.Msg.GetToUrl(), Token: r.Msg.GetToToken(),
	}, r.Msg.GetToken(), caller.UserID)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.StartMoveResponse{Move: moveMessage(m)}), nil
}

func (s *moveService) GetMove(
	ctx context.Context, r *connect.Request[runnersv1.GetMoveRequest],
) (*connect.Response[runnersv1.GetMoveResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	m, counts, err := s.moves.Get(ctx, r.Msg.GetOrganizationId())
	if err != nil {
		return nil, err
	}
	out := moveMessage(m)
	out.PipelinesLeft, out.PipelinesRunning = counts.Pipelines, counts.PipelinesRunning
	return connect.NewResponse(&runnersv1.GetMoveResponse{Move: out}), nil
}

func (s *moveService) ListMoves(
	ctx context.Context, _ *connect.Request[runnersv1.ListMovesRequest],
) (*connect.Response[runnersv1.ListMovesResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	moves, err := s.moves.List(ctx)
	if err != nil {
		return nil, err
	}
	out := &runnersv1.ListMovesResponse{}
	for _, m := range moves {
		out.Moves = append(out.Moves, moveMessage(m))
	}
	return connect.NewResponse(out), nil
}

func (s *moveService) CancelMove(
	ctx context.Context, r *connect.Request[runnersv1.CancelMoveRequest],
) (*connect.Response[runnersv1.CancelMoveResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	m, err := s.moves.Cancel(ctx, r.Msg.GetOrganizationId())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.CancelMoveResponse{Move: moveMessage(m)}), nil
}

func (s *moveService) CancelArrival(
	ctx context.Context, r *connect.Request[runnersv1.CancelArrivalRequest],
) (*connect.Response[runnersv1.CancelArrivalResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	m, err := s.moves.CancelArrival(ctx, r.Msg.GetOrganizationId(), r.Msg.GetToken())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&runnersv1.CancelArrivalResponse{Move: moveMessage(m)}), nil
}

var phases = map[move.Phase]runnersv1.MovePhase{ //nolint:gochecknoglobals // a table
	move.Copying:     runnersv1.MovePhase_MOVE_PHASE_COPYING,
	move.Canceling:   runnersv1.MovePhase_MOVE_PHASE_CANCELING,
	move.Canceled:    runnersv1.MovePhase_MOVE_PHASE_CANCELED,
	move.Moved:       runnersv1.MovePhase_MOVE_PHASE_MOVED,
	move.HandingOver: runnersv1.MovePhase_MOVE_PHASE_HANDING_OVER,
	move.Ending:      runnersv1.MovePhase_MOVE_PHASE_ENDING,
	move.Done:        runnersv1.MovePhase_MOVE_PHASE_DONE,
	move.Arriving:    runnersv1.MovePhase_MOVE_PHASE_ARRIVING,
	move.Open:        runnersv1.MovePhase_MOVE_PHASE_OPEN,
}

func moveMessage(m move.Move) *runnersv1.Move {
	return &runnersv1.Move{
		Id: m.ID, OrganizationId: m.OrganizationID, Cell: string(m.Cell), Arrival: m.Arrival, Phase: phases[m.Phase],
		Message: m.Message, StartedBy: m.StartedBy, StartedAt: timestamp(m.StartedAt), CancelAt: timestamp(m.CancelAt),
		EndedAt: timestamp(m.EndedAt),
	}
}
