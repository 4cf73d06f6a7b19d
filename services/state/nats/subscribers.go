package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/domain"
)

// Subscribers prepares NATS for tools outside of Lockstep, and throws them out.
type Subscribers struct {
	Streams jetstream.JetStream
	Kicker  *natsauth.Disconnector
	Logger  *slog.Logger
	// Background runs work that outlives the call, and is waited for when the service stops.
	Background func(func(ctx context.Context))
}

// Admit makes the consumer that the subscriber reads with.
func (s *Subscribers) Admit(ctx context.Context, subscriber domain.Subscriber) error {
	err := topology.EnsureSubscriber(ctx, s.Streams, topology.Subscriber{Name: subscriber.Name, Filter: subscriber.Filter, Since: subscriber.Since()})
	if err != nil {
		return fmt.Errorf("admit subscriber %s: %w", subscriber.Name, err)
	}
	return nil
}

// Expel cuts the subscriber's connections now, and again in the background, for one that was being admitted meanwhile.
func (s *Subscribers) Expel(ctx context.Context, subscriber domain.Subscriber) error {
	principals := []natsauth.Principal{
		{Kind: natsauth.KindSubscriber, Name: subscriber.Name},
		{Kind: natsauth.KindListener, Name: subscriber.Name, Filter: subscriber.Filter},
	}
	var failed []error
	for _, principal := range principals {
		_, err := s.Kicker.DisconnectOnce(ctx, principal)
		failed = append(failed, err)
		s.Background(func(ctx context.Context) {
			if _, err := s.Kicker.Disconnect(ctx, principal); err != nil && ctx.Err() == nil {
				s.Logger.WarnContext(ctx, "cut the revoked subscriber's connections a second time", "subscriber", subscriber.Name, "error", err)
			}
		})
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("expel subscriber %s: %w", subscriber.Name, err)
	}
	return nil
}

// Forget removes the consumer of a name that nobody has any more.
func (s *Subscribers) Forget(ctx context.Context, name string) error {
	if err := topology.RemoveSubscriber(ctx, s.Streams, name); err != nil {
		return fmt.Errorf("forget subscriber %s: %w", name, err)
	}
	return nil
}

// ForgetOthers removes the consumers of all subscribers but these: those of revoked ones come back with a stream that is restored from an older copy.
func (s *Subscribers) ForgetOthers(ctx context.Context, names map[string]bool) error {
	stream, err := s.Streams.Stream(ctx, topology.StreamDeploys)
	if err != nil {
		return fmt.Errorf("list subscribers' consumers: %w", err)
	}
	var gone []string
	consumers := stream.ConsumerNames(ctx)
	for consumer := range consumers.Name() {
		if name, is := topology.SubscriberOf(consumer); is && !names[name] {
			gone = append(gone, name)
		}
	}
	if err := consumers.Err(); err != nil {
		return fmt.Errorf("list subscribers' consumers: %w", err)
	}
	for _, name := range gone {
		if err := s.Forget(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Pending is how many facts wait to be delivered to the subscriber; false where NATS cannot tell.
func (s *Subscribers) Pending(ctx context.Context, name string) (uint64, bool) {
	consumer, err := s.Streams.Consumer(ctx, topology.StreamDeploys, topology.SubscriberConsumer(name))
	if err != nil {
		return 0, false
	}
	return consumer.CachedInfo().NumPending, true
}
