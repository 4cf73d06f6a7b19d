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

// DeadLetters retries and drops single dead letters by their sequence.
type DeadLetters interface {
	Retry(ctx context.Context, sequence uint64) error
	Drop(ctx context.Context, sequence uint64) error
}

type operationService struct {
	statev1connect.UnimplementedOperationServiceHandler
	access

	rebuild     Rebuild
	deadLetters DeadLetters
	now         func() time.Time
}

func (s *operationService) RetryDeadLetter(
	ctx context.Context, r *connect.Request[statev1.RetryDeadLetterRequest],
) (*connect.Response[statev1.RetryDeadLetterResponse], error) {
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	if err := s.deadLetters.Retry(ctx, r.Msg.GetSequence()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.RetryDeadLetterResponse{}), nil
}

func (s *operationService) DropDeadLetter(
	ctx context.Context, r *connect.Request[statev1.DropDeadLetterRequest],
) (*connect.Response[statev1.DropDeadLetterResponse], error) {
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	if err := s.deadLetters.Drop(ctx, r.Msg.GetSequence()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&statev1.DropDeadLetterResponse{}), nil
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
