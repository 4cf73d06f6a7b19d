package api

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/readmodel"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
)

// Rebuild rebuilds the read model, and unless check is true replaces the live rows. An error of progress cancels it.
type Rebuild func(
	ctx context.Context, check bool, progress func(readmodel.Progress) error,
) (readmodel.Outcome, error)

type operationService struct {
	statev1connect.UnimplementedOperationServiceHandler
	access

	rebuild Rebuild
	now     func() time.Time
}

func (s *operationService) Rebuild(
	ctx context.Context, r *connect.Request[statev1.RebuildRequest],
	stream *connect.ServerStream[statev1.RebuildResponse],
) error {
	if err := s.administer(ctx); err != nil {
		return err
	}
	report := func(p readmodel.Progress) error {
		return stream.Send(&statev1.RebuildResponse{Message: &statev1.RebuildResponse_Progress{
			Progress: &statev1.RebuildProgress{Stream: p.Stream, Sequence: p.Sequence, LastSequence: p.Last},
		}})
	}
	out, err := readmodel.Serve(ctx, s.now, report,
		func(ctx context.Context, progress func(readmodel.Progress) error) (readmodel.Outcome, error) {
			return s.rebuild(ctx, r.Msg.GetCheck(), progress)
		})
	if err != nil {
		return err
	}
	outcome := &statev1.RebuildOutcome{Differences: out.Differences, Replaced: out.Replaced}
	for _, table := range out.Tables {
		outcome.Tables = append(outcome.Tables, &statev1.RebuiltTable{
			Name: table.Name, Rows: table.Rows, Different: table.Different,
		})
	}
	response := &statev1.RebuildResponse{Message: &statev1.RebuildResponse_Outcome{Outcome: outcome}}
	return stream.Send(response) //nolint:wrapcheck // the caller is gone
}
