package api

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/readmodel"
	runnersv1 "lockstep.internal/schemas/gen/lockstep/runners/v1"
	"lockstep.internal/schemas/gen/lockstep/runners/v1/runnersv1connect"
)

// Rebuild recreates the table of jobs from the stream and compares it with the stored one. Unless check is set, it
// replaces the stored one. An error of progress cancels it.
type Rebuild func(
	ctx context.Context, check bool, progress func(readmodel.Progress) error,
) (readmodel.Outcome, error)

type operationService struct {
	runnersv1connect.UnimplementedOperationServiceHandler

	rebuild Rebuild
	now     func() time.Time
}

func (s *operationService) Rebuild(
	ctx context.Context, r *connect.Request[runnersv1.RebuildRequest],
	stream *connect.ServerStream[runnersv1.RebuildResponse],
) error {
	if err := access.RequireAdministrator(ctx); err != nil {
		return err
	}
	report := func(p readmodel.Progress) error {
		return stream.Send(&runnersv1.RebuildResponse{Message: &runnersv1.RebuildResponse_Progress{
			Progress: &runnersv1.RebuildProgress{Stream: p.Stream, Sequence: p.Sequence, LastSequence: p.Last},
		}})
	}
	out, err := readmodel.Serve(ctx, s.now, report,
		func(ctx context.Context, progress func(readmodel.Progress) error) (readmodel.Outcome, error) {
			return s.rebuild(ctx, r.Msg.GetCheck(), progress)
		})
	if err != nil {
		return err
	}
	outcome := &runnersv1.RebuildOutcome{Differences: out.Differences, Replaced: out.Replaced}
	for _, table := range out.Tables {
		outcome.Tables = append(outcome.Tables, &runnersv1.RebuiltTable{
			Name: table.Name, Rows: table.Rows, Different: table.Different,
		})
	}
	response := &runnersv1.RebuildResponse{Message: &runnersv1.RebuildResponse_Outcome{Outcome: outcome}}
	return stream.Send(response) //nolint:wrapcheck // the caller is gone
}
