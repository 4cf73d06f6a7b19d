package api

import (
	"context"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	deploysv1 "lockstep.internal/schemas/gen/lockstep/deploys/v1"
	"lockstep.internal/schemas/gen/lockstep/deploys/v1/deploysv1connect"
	"lockstep.internal/services/deploys/postgres"
	"lockstep.internal/services/deploys/sink"
)

// Sinks is the part of [sink.Set] that the API uses.
type Sinks interface {
	List(ctx context.Context) ([]sink.Status, error)
	Backfill(ctx context.Context, name string, sequence uint64) error
	Resend(ctx context.Context, name string, sequence uint64) error
}

type sinkService struct {
	deploysv1connect.UnimplementedSinkServiceHandler

	sinks Sinks
	pool  *pgxpool.Pool
}

func (s *sinkService) ListSinks(
	ctx context.Context, _ *connect.Request[deploysv1.ListSinksRequest],
) (*connect.Response[deploysv1.ListSinksResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	list, err := s.sinks.List(ctx)
	if err != nil {
		return nil, err
	}
	out := &deploysv1.ListSinksResponse{}
	for i := range list {
		out.Sinks = append(out.Sinks, statusMessage(&list[i]))
	}
	return connect.NewResponse(out), nil
}

func statusMessage(s *sink.Status) *deploysv1.Sink {
	out := &deploysv1.Sink{
		Name: s.Name, Type: s.Type, NextSequence: s.Next,
		Pending: s.Lag, Waiting: int64(s.Pending), Trouble: s.LastError,
	}
	if !s.LastErrorSince.IsZero() {
		out.TroubleSince = timestamppb.New(s.LastErrorSince)
	}
	return out
}

func (s *sinkService) BackfillSink(
	ctx context.Context, r *connect.Request[deploysv1.BackfillSinkRequest],
) (*connect.Response[deploysv1.BackfillSinkResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	first := uint64(0)
	if since := r.Msg.GetSince(); since != nil {
		if !since.IsValid() {
			return nil, fault.New(errcode.InvalidArgument, "since is not a valid time").With("field", "since")
		}
		position, err := (&postgres.Store{}).FirstSince(ctx, s.pool, since.AsTime())
		if postgres.Missing(err) {
			return nil, fault.New(errcode.NotFound, "no fact was recorded since %s", since.AsTime())
		}
		if err != nil {
			return nil, err
		}
		first = uint64(position)
	}
	if err := s.sinks.Backfill(ctx, r.Msg.GetName(), first); err != nil {
		return nil, err
	}
	return connect.NewResponse(&deploysv1.BackfillSinkResponse{}), nil
}

func (s *sinkService) ResendFact(
	ctx context.Context, r *connect.Request[deploysv1.ResendFactRequest],
) (*connect.Response[deploysv1.ResendFactResponse], error) {
	if err := access.RequireAdministrator(ctx); err != nil {
		return nil, err
	}
	fact, err := (&postgres.Store{}).Fact(ctx, s.pool, r.Msg.GetFactId())
	switch {
	case postgres.Missing(err):
		return nil, fault.New(errcode.NotFound, "fact %q does not exist", r.Msg.GetFactId())
	case err != nil:
		return nil, err
	case fact.StreamSequence <= 0:
		return nil, fault.New(errcode.FailedPrecondition, "fact %q is no longer on the stream", r.Msg.GetFactId())
	}
	if err := s.sinks.Resend(ctx, r.Msg.GetSink(), uint64(fact.StreamSequence)); err != nil {
		return nil, err
	}
	return connect.NewResponse(&deploysv1.ResendFactResponse{}), nil
}
