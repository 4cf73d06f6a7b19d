package api

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/service"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/rebuild"
)

// Rebuild rebuilds the read model, and unless check is true replaces the live tables. It stops if progress returns an
// error.
type Rebuild func(ctx context.Context, check bool, progress func(rebuild.Progress) error) (rebuild.Outcome, error)

// progressInterval is the minimum time between two progress messages.
const progressInterval = 100 * time.Millisecond

type operationService struct {
	statev1connect.UnimplementedOperationServiceHandler
	access

	rebuild Rebuild
	now     func() time.Time
}

func (s *operationService) Rebuild(
	ctx context.Context,
	r *connect.Request[statev1.RebuildRequest],
	stream *connect.ServerStream[statev1.RebuildResponse],
) error {
	if err := s.administer(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-service.Draining(ctx):
			cancel(fault.New(errcode.Unavailable, "the server is stopping and nothing was changed: rebuild again"))
		case <-done:
		}
	}()
	var last time.Time
	out, err := s.rebuild(ctx, r.Msg.GetCheck(), func(p rebuild.Progress) error {
		now := s.now()
		if p.Sequence < p.Last && now.Sub(last) < progressInterval {
			return nil
		}
		last = now
		return stream.Send(&statev1.RebuildResponse{Message: &statev1.RebuildResponse_Progress{
			Progress: &statev1.RebuildProgress{Stream: p.Stream, Sequence: p.Sequence, LastSequence: p.Last},
		}})
	})
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	outcome := &statev1.RebuildOutcome{Differences: out.Differences, Replaced: out.Replaced}
	for _, table := range out.Tables {
		outcome.Tables = append(
			outcome.Tables,
			&statev1.RebuiltTable{Name: table.Name, Rows: table.Rows, Different: table.Different},
		)
	}
	response := &statev1.RebuildResponse{Message: &statev1.RebuildResponse_Outcome{Outcome: outcome}}
	return stream.Send(response) //nolint:wrapcheck // the caller is gone
}
