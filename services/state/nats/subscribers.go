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

func reader(s directory.Subscriber) topology.Subscriber {
	return topology.Subscriber{Name: s.Name, Filter: s.Filter, Since: s.Since()}
}

// Ensure creates or updates the consumer of the subscriber.
func (s *Subscribers) Ensure(ctx context.Context, subscriber directory.Subscriber) error {
	if err := topology.EnsureSubscriber(ctx, s.JetStream, reader(subscriber)); err != nil {
		return fmt.Errorf("ensure the consumer of subscriber %s: %w", subscriber.Name, err)
	}
	return nil
}

// Disconnect closes the subscriber's connections now, and once more in the background for a connection that
// was being authenticated.
func (s *Subscribers) Disconnect(ctx context.Context, subscriber directory.Subscriber) error {
	principals := []natsauth.Principal{
		{Kind: natsauth.KindSubscriber, Name: subscriber.Name, Filter: subscriber.Filter},
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

// Remove removes the consumer of a subscriber whose name is no longer in use.
func (s *Subscribers) Remove(ctx context.Context, subscriber directory.Subscriber) error {
	return s.remove(ctx, reader(subscriber).Stream(), subscriber.Name)
}

func (s *Subscribers) remove(ctx context.Context, stream, name string) error {
	if err := topology.RemoveSubscriber(ctx, s.JetStream, stream, name); err != nil {
		return fmt.Errorf("remove the consumer of subscriber %s: %w", name, err)
	}
	return nil
}

// RemoveOthers removes the consumers of all but the given subscribers. A stream restored from an older backup brings
// back consumers of revoked ones.
func (s *Subscribers) RemoveOthers(ctx context.Context, present []directory.Subscriber) error {
	names := map[string]map[string]bool{}
	for _, stream := range topology.PublicStreams() {
		names[stream] = map[string]bool{}
	}
	for _, subscriber := range present {
		names[reader(subscriber).Stream()][subscriber.Name] = true
	}
	for _, stream := range topology.PublicStreams() {
		if err := s.removeOthers(ctx, stream, names[stream]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Subscribers) removeOthers(ctx context.Context, name string, present map[string]bool) error {
	stream, err := s.JetStream.Stream(ctx, name)
	if err != nil {
		return fmt.Errorf("list subscribers' consumers on %s: %w", name, err)
	}
	var unused []string
	consumers := stream.ConsumerNames(ctx)
	for consumer := range consumers.Name() {
		if subscriber, is := topology.SubscriberOf(consumer); is && !present[subscriber] {
			unused = append(unused, subscriber)
		}
	}
	if err := consumers.Err(); err != nil {
		return fmt.Errorf("list subscribers' consumers on %s: %w", name, err)
	}
	for _, subscriber := range unused {
		if err := s.remove(ctx, name, subscriber); err != nil {
			return err
		}
	}
	return nil
}

// Pending returns the number of events that the subscriber has not read; false if NATS does not answer.
func (s *Subscribers) Pending(ctx context.Context, subscriber directory.Subscriber) (uint64, bool) {
	stream, name := reader(subscriber).Stream(), topology.SubscriberConsumer(subscriber.Name)
	consumer, err := s.JetStream.Consumer(ctx, stream, name)
	if err != nil {
		return 0, false
	}
	return consumer.CachedInfo().NumPending, true
}
