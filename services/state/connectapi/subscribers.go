package connectapi

import (
	"context"
	"log/slog"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/domain"
)

// Subscribers is what the API needs of NATS when subscribers come and go.
type Subscribers interface {
	// Admit makes the place on the stream that the subscriber reads from. It may be called again.
	Admit(ctx context.Context, s domain.Subscriber) error
	// Expel cuts a subscriber's live connections.
	Expel(ctx context.Context, s domain.Subscriber) error
	// Forget gives up the place of a name that nobody has any more.
	Forget(ctx context.Context, name string) error
	// Pending is how much waits there to be read; false where that cannot be told.
	Pending(ctx context.Context, name string) (uint64, bool)
}

type subscriberService struct {
	statev1connect.UnimplementedSubscriberServiceHandler
	access

	subscribers Subscribers
	agents      Agents
	endpoint    AgentEndpoint
	cell        topology.Cell
	logger      *slog.Logger
}

func (s *subscriberService) CreateSubscriber(ctx context.Context, r *connect.Request[statev1.CreateSubscriberRequest]) (*connect.Response[statev1.CreateSubscriberResponse], error) {
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	if err := slug(r.Msg.GetName()); err != nil {
		return nil, err
	}
	filter, err := s.cell.DeployFilter(r.Msg.GetFilter())
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "%v", err).With("field", "filter")
	}
	value := natsauth.NewToken(natsauth.TokenSubscriber)
	hash, err := natsauth.HashToken(natsauth.TokenSubscriber, value)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Internal, "make a token")
	}
	made, err := s.directory.CreateSubscriber(ctx, domain.Subscriber{
		Name: r.Msg.GetName(), Filter: filter, FromBeginning: r.Msg.GetFromBeginning(), UserID: caller(ctx).ID,
	}, hash[:])
	if err != nil {
		return nil, err
	}
	// The subscriber is made whether or not NATS answers now, and its place begins when it was made.
	if err := s.subscribers.Admit(ctx, made); err != nil {
		s.logger.WarnContext(ctx, "prepare NATS for the new subscriber: it is tried again", "subscriber", made.Name, "error", err)
		s.agents.AdmitAgain()
	}
	return connect.NewResponse(&statev1.CreateSubscriberResponse{
		Subscriber: subscriber(made), Token: value, User: made.Name, Listener: natsauth.ListenerUser(made.Name), InboxPrefix: natsauth.InboxPrefix(made.Name),
		NatsUrls: s.endpoint.URLs, NatsCa: s.endpoint.CA,
	}), nil
}

func (s *subscriberService) ListSubscribers(ctx context.Context, r *connect.Request[statev1.ListSubscribersRequest]) (*connect.Response[statev1.ListSubscribersResponse], error) {
	p, err := page(r.Msg.GetPageSize(), r.Msg.GetPageToken())
	if err != nil {
		return nil, err
	}
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	found, err := s.directory.Subscribers(ctx, p)
	if err != nil {
		return nil, err
	}
	shown := each(found, subscriber)
	for _, one := range shown {
		if one.GetRevoked() {
			continue
		}
		pending, told := s.subscribers.Pending(ctx, one.GetName())
		if !told { // NATS is away: the others need not be asked for
			break
		}
		one.Pending = &pending
	}
	return connect.NewResponse(&statev1.ListSubscribersResponse{Subscribers: shown, NextPageToken: next(found, p, func(s domain.Subscriber) int64 { return s.ID })}), nil
}

func (s *subscriberService) RevokeSubscriber(ctx context.Context, r *connect.Request[statev1.RevokeSubscriberRequest]) (*connect.Response[statev1.RevokeSubscriberResponse], error) {
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	if err := id("id", r.Msg.GetId()); err != nil {
		return nil, err
	}
	before, err := s.directory.Subscriber(ctx, r.Msg.GetId())
	if err != nil {
		return nil, err
	}
	revoked := before
	if !before.Revoked {
		if revoked, err = s.directory.RevokeSubscriber(ctx, before.ID); err != nil {
			return nil, err
		}
		// Its place on the stream is given up in any case, and only now: the name may be another one's later.
		defer func() {
			if err := s.subscribers.Forget(ctx, revoked.Name); err != nil {
				s.logger.WarnContext(ctx, "give up the revoked subscriber's place on the stream: it is tried again", "subscriber", revoked.Name, "error", err)
				s.agents.AdmitAgain()
			}
		}()
	}
	// Whoever has the name by now is back at once.
	if err := s.subscribers.Expel(ctx, revoked); err != nil {
		return nil, fault.Wrap(err, errcode.Unavailable, "subscriber %s is revoked and cannot connect again, but its live connections could not be cut: try again", revoked.Name)
	}
	return connect.NewResponse(&statev1.RevokeSubscriberResponse{Subscriber: subscriber(revoked)}), nil
}

func subscriber(s domain.Subscriber) *statev1.Subscriber {
	return &statev1.Subscriber{
		Id: s.ID, Name: s.Name, Filter: s.Filter, Stream: topology.StreamDeploys, Consumer: topology.SubscriberConsumer(s.Name), FromBeginning: s.FromBeginning,
		CreatedAt: timestamp(s.CreatedAt), Revoked: s.Revoked,
	}
}
