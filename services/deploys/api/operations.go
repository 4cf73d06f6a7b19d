package api

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/readmodel"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
)

// Rebuild recreates the tables from the stream and compares them with the stored ones. Unless check is set, it replaces
// the stored ones. An error of progress cancels it.
type Rebuild func(
	ctx context.Context, check bool, progress func(readmodel.Progress) error,
) (readmodel.Outcome, error)

type operationService struct {
	deploysv1connect.UnimplementedOperationServiceHandler

	rebuild Rebuild
	now     func() time.Time
}

func (s *operationService) Rebuild(
	ctx context.Context, r *connect.Request[deploysv1.RebuildRequest],
	stream *connect.ServerStream[deploysv1.RebuildResponse],
) error {
	if err := access.RequireAdministrator(ctx); err != nil {
		return err
	}
	report := func(p readmodel.Progress) error {
		return stream.Send(&deploysv1.RebuildResponse{Message: &deploysv1.RebuildResponse_Progress{
			Progress: &deploysv1.RebuildProgress{Stream: p.Stream, Sequence: p.Sequence, LastSequence: p.Last},
		}})
	}
	out, err := readmodel.Serve(ctx, s.now, report,
		func(ctx context.Context, progress func(readmodel.Progress) error) (readmodel.Outcome, error) {
			return s.rebuild(ctx, r.Msg.GetCheck(), progress)
		})
	if err != nil {
		return err
	}
	outcome := &deploysv1.RebuildOutcome{Differences: out.Differences, Replaced: out.Replaced}
	for _, table := range out.Tables {
		outcome.Tables = append(outcome.Tables, &deploysv1.RebuiltTable{
			Name: table.Name, Rows: table.Rows, Different: table.Different,
		})
	}
	response := &deploysv1.RebuildResponse{Message: &deploysv1.RebuildResponse_Outcome{Outcome: outcome}}
	return stream.Send(response) //nolint:wrapcheck // the caller is gone
}
