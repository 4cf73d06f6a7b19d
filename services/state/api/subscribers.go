package api

import (
	"context"
	"log/slog"

	"connectrpc.com/connect"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/schemas/gen/lockstep/state/v1/statev1connect"
	"lockstep.internal/services/state/directory"
)

// Subscribers manages the consumers and connections of subscribers.
type Subscribers interface {
	// Ensure creates the subscriber's consumer if it is missing.
	Ensure(ctx context.Context, s directory.Subscriber) error
	// Disconnect closes the subscriber's connections.
	Disconnect(ctx context.Context, s directory.Subscriber) error
	// Remove removes the consumer of a revoked subscriber.
	Remove(ctx context.Context, s directory.Subscriber) error
	// Pending returns the number of unread events; false if NATS does not answer.
	Pending(ctx context.Context, s directory.Subscriber) (uint64, bool)
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

func (s *subscriberService) CreateSubscriber(
	ctx context.Context,
	r *connect.Request[statev1.CreateSubscriberRequest],
) (*connect.Response[statev1.CreateSubscriberResponse], error) {
	if err := s.administer(ctx); err != nil {
		return nil, err
	}
	if err := directory.CheckName(r.Msg.GetName()); err != nil {
		return nil, err
	}
	filter, err := s.cell.SubscriberFilter(r.Msg.GetFilter())
	if err != nil {
		return nil, fault.Wrap(err, errcode.InvalidArgument, "%v", err).With("field", "filter")
	}
	value := natsauth.NewToken(natsauth.TokenSubscriber)
	hash, err := natsauth.HashToken(natsauth.TokenSubscriber, value)
	if err != nil {
		return nil, fault.Wrap(err, errcode.Internal, "make a token")
	}
	made, err := s.directory.CreateSubscriber(ctx, directory.Subscriber{
		Name: r.Msg.GetName(), Filter: filter, FromBeginning: r.Msg.GetFromBeginning(), UserID: caller(ctx).ID,
	}, hash[:])
	if err != nil {
		return nil, err
	}
	// The subscriber exists even if NATS does not answer now. Its consumer starts at its creation.
	if err := s.subscribers.Ensure(ctx, made); err != nil {
		s.logger.WarnContext(ctx, "create the consumer of a new subscriber failed; retrying",
			slog.String(logkey.Name, made.Name), logkey.Error(err))
		s.agents.RequestEnsure()
	}
	return connect.NewResponse(&statev1.CreateSubscriberResponse{
		Subscriber:  subscriber(made),
		Token:       value,
		User:        made.Name,
		Listener:    natsauth.ListenerUser(made.Name),
		InboxPrefix: natsauth.InboxPrefix(made.Name),
		NatsUrls:    s.endpoint.URLs,
		NatsCa:      s.endpoint.CA,
	}), nil
}

func (s *subscriberService) ListSubscribers(
	ctx context.Context,
	r *connect.Request[statev1.ListSubscribersRequest],
) (*connect.Response[statev1.ListSubscribersResponse], error) {
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
	messages := convertAll(found, subscriber)
	for i, one := range found {
		if one.Revoked {
			continue
		}
		pending, known := s.subscribers.Pending(ctx, one)
		if !known { // NATS does not answer for the others either
			break
		}
		messages[i].Pending = &pending
	}
	return connect.NewResponse(
		&statev1.ListSubscribersResponse{
			Subscribers:   messages,
			NextPageToken: next(found, p, func(s directory.Subscriber) int64 { return s.ID }),
		},
	), nil
}

func (s *subscriberService) RevokeSubscriber(
	ctx context.Context,
	r *connect.Request[statev1.RevokeSubscriberRequest],
) (*connect.Response[statev1.RevokeSubscriberResponse], error) {
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
		// Remove the consumer in any case, and now: another subscriber may use the name later.
		defer func() {
			if err := s.subscribers.Remove(ctx, revoked); err != nil {
				s.logger.WarnContext(ctx, "remove the consumer of a revoked subscriber failed; retrying",
					slog.String(logkey.Name, revoked.Name), logkey.Error(err))
				s.agents.RequestEnsure()
			}
		}()
	}
	// A new subscriber with the name reconnects at once.
	if err := s.subscribers.Disconnect(ctx, revoked); err != nil {
		return nil, fault.Wrap(
			err,
			errcode.Unavailable,
			"subscriber %s is revoked and cannot connect again, but closing its connections failed: try again",
			revoked.Name,
		)
	}
	return connect.NewResponse(&statev1.RevokeSubscriberResponse{Subscriber: subscriber(revoked)}), nil
}

func subscriber(s directory.Subscriber) *statev1.Subscriber {
	return &statev1.Subscriber{
		Id:            s.ID,
		Name:          s.Name,
		Filter:        s.Filter,
		Stream:        topology.Subscriber{Name: s.Name, Filter: s.Filter}.Stream(),
		Consumer:      topology.SubscriberConsumer(s.Name),
		FromBeginning: s.FromBeginning,
		CreatedAt:     timestamp(s.CreatedAt),
		Revoked:       s.Revoked,
	}
}
