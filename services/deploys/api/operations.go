package api

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/service"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
)

// progressInterval is the minimum time between two progress messages.
const progressInterval = 100 * time.Millisecond

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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-service.Draining(ctx):
			cancel(fault.New(errcode.Unavailable, "the server is stopping and changed nothing: rebuild again"))
		case <-done:
		}
	}()
	var last time.Time
	out, err := s.rebuild(ctx, r.Msg.GetCheck(), func(sequence, until uint64) error {
		now := s.now()
		if sequence < until && now.Sub(last) < progressInterval {
			return nil
		}
		last = now
		return stream.Send(&deploysv1.RebuildResponse{Message: &deploysv1.RebuildResponse_Progress{
			Progress: &deploysv1.RebuildProgress{Stream: topology.StreamObserved, Sequence: sequence, LastSequence: until},
		}})
	})
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	outcome := &deploysv1.RebuildOutcome{Differences: out.Differences, Replaced: out.Replaced}
	for _, table := range out.Tables {
		outcome.Tables = append(outcome.Tables, &deploysv1.RebuiltTable{
			Name: table.Name, Rows: table.Rows, Different: table.Different,
		})
	}
	response := &deploysv1.RebuildResponse{Message: &deploysv1.RebuildResponse_Outcome{Outcome: outcome}}
	return stream.Send(response) //nolint:wrapcheck // The caller disconnected.
}
