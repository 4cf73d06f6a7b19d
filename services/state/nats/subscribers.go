package nats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/state/directory"
)

// Subscribers creates the consumers of subscribers and disconnects revoked subscribers.
type Subscribers struct {
	JetStream    jetstream.JetStream
	Disconnector *natsauth.Disconnector
	Logger       *slog.Logger
	// Background runs work after the call. The service waits for it when it stops.
	Background func(func(ctx context.Context))
}

// Ensure creates or updates the consumer of the subscriber.
func (s *Subscribers) Ensure(ctx context.Context, subscriber directory.Subscriber) error {
	err := topology.EnsureSubscriber(
		ctx,
		s.JetStream,
		topology.Subscriber{Name: subscriber.Name, Filter: subscriber.Filter, Since: subscriber.Since()},
	)
	if err != nil {
		return fmt.Errorf("ensure the consumer of subscriber %s: %w", subscriber.Name, err)
	}
	return nil
}

// Disconnect closes the subscriber's connections now, and once more in the background for a connection that
// was being authenticated.
func (s *Subscribers) Disconnect(ctx context.Context, subscriber directory.Subscriber) error {
	principals := []natsauth.Principal{
		{Kind: natsauth.KindSubscriber, Name: subscriber.Name},
		{Kind: natsauth.KindListener, Name: subscriber.Name, Filter: subscriber.Filter},
	}
	var failed []error
	for _, principal := range principals {
		_, err := s.Disconnector.DisconnectOnce(ctx, principal)
		failed = append(failed, err)
		s.Background(func(ctx context.Context) {
			if _, err := s.Disconnector.Disconnect(ctx, principal); err != nil && ctx.Err() == nil {
				s.Logger.WarnContext(ctx, "second disconnect of a revoked subscriber failed",
					slog.String(logkey.Name, subscriber.Name), logkey.Error(err))
			}
		})
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("disconnect subscriber %s: %w", subscriber.Name, err)
	}
	return nil
}

// Remove removes the consumer of a name that is no longer in use.
func (s *Subscribers) Remove(ctx context.Context, name string) error {
	if err := topology.RemoveSubscriber(ctx, s.JetStream, name); err != nil {
		return fmt.Errorf("remove the consumer of subscriber %s: %w", name, err)
	}
	return nil
}

// RemoveOthers removes the consumers of all other subscribers. A stream restored from an older backup brings
// back consumers of revoked ones.
func (s *Subscribers) RemoveOthers(ctx context.Context, names map[string]bool) error {
	stream, err := s.JetStream.Stream(ctx, topology.StreamDeploys)
	if err != nil {
		return fmt.Errorf("list subscribers' consumers: %w", err)
	}
	var unused []string
	consumers := stream.ConsumerNames(ctx)
	for consumer := range consumers.Name() {
		if name, is := topology.SubscriberOf(consumer); is && !names[name] {
			unused = append(unused, name)
		}
	}
	if err := consumers.Err(); err != nil {
		return fmt.Errorf("list subscribers' consumers: %w", err)
	}
	for _, name := range unused {
		if err := s.Remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Pending returns the number of events that the subscriber has not read; false if NATS does not answer.
func (s *Subscribers) Pending(ctx context.Context, name string) (uint64, bool) {
	consumer, err := s.JetStream.Consumer(ctx, topology.StreamDeploys, topology.SubscriberConsumer(name))
	if err != nil {
		return 0, false
	}
	return consumer.CachedInfo().NumPending, true
}
