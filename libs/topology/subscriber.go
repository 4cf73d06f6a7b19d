package topology

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Subscriber is an external reader of DEPLOYS with its own durable pull consumer, which is created for it because
// it may not create consumers.
type Subscriber struct {
	// Name is a DNS label.
	Name string
	// Filter is the subjects that it gets, as [Cell.DeployFilter] returns it.
	Filter string
	// Since is the start time. Zero means all stored messages.
	Since time.Time
}

const (
	// deployTokens follow the family in the subject of a fact: cluster, namespace, kind, name,
	// fact.
	deployTokens = 5
	maxFilter    = 512
	// subscriberAckWait is the redelivery delay of an unacknowledged fact.
	subscriberAckWait = 30 * time.Second
	subscriberPrefix  = "subscriber-"
)

// SubscriberConsumer is the name of a subscriber's consumer on DEPLOYS.
func SubscriberConsumer(name string) string { return subscriberPrefix + name }

// Consumer returns the configuration of the subscriber's consumer. It is the same every time, so a recreated
// consumer starts at the same position: facts may be redelivered, but none is missing.
func (s Subscriber) Consumer() jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Durable:       SubscriberConsumer(s.Name),
		FilterSubject: s.Filter,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       subscriberAckWait,
		MaxAckPending: 1000,
	}
	if !s.Since.IsZero() {
		since := s.Since.UTC()
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	return cfg
}

// EnsureSubscriber creates or updates the subscriber's consumer.
func EnsureSubscriber(ctx context.Context, js jetstream.JetStream, s Subscriber) error {
	if _, err := js.CreateOrUpdateConsumer(ctx, StreamDeploys, s.Consumer()); err != nil {
		return fmt.Errorf("consumer %s on stream %s: %w", SubscriberConsumer(s.Name), StreamDeploys, err)
	}
	return nil
}

// RemoveSubscriber removes the consumer of a subscriber. A missing consumer is not an error.
func RemoveSubscriber(ctx context.Context, js jetstream.JetStream, name string) error {
	err := js.DeleteConsumer(ctx, StreamDeploys, SubscriberConsumer(name))
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("consumer %s on stream %s: %w", SubscriberConsumer(name), StreamDeploys, err)
	}
	return nil
}

// SubscriberOf returns the subscriber's name from the name of a consumer on DEPLOYS, and false for other consumers.
func SubscriberOf(consumer string) (string, bool) {
	return strings.CutPrefix(consumer, subscriberPrefix)
}

// DeployFilter parses a subject filter for facts, with or without the prefix lockstep.<cell>, with wildcards; empty
// means all. It returns the whole subject, and an error if the filter is invalid or could match no fact.
func (c Cell) DeployFilter(filter string) (string, error) {
	if filter == "" {
		return c.All(FamilyDeploy), nil
	}
	if len(filter) > maxFilter {
		return "", fmt.Errorf("filter: %d characters, at most %d", len(filter), maxFilter)
	}
	whole := filter
	if !strings.HasPrefix(filter, Root+".") {
		whole = Root + "." + string(c) + "." + filter
	}
	rest, ok := strings.CutPrefix(whole, c.Prefix(FamilyDeploy)+".")
	if !ok {
		return "", fmt.Errorf("filter %q: is not below %s", filter, c.Prefix(FamilyDeploy))
	}
	tokens := strings.Split(rest, ".")
	for i, token := range tokens {
		if token == "*" || token == ">" && i == len(tokens)-1 {
			continue
		}
		if _, err := Unescape(token); err != nil || token == "" {
			return "", fmt.Errorf("filter %q: %q is neither a name in its escaped form, nor *, nor > at the end", filter, token)
		}
	}
	if open := tokens[len(tokens)-1] == ">"; len(tokens) > deployTokens || !open && len(tokens) < deployTokens {
		return "", fmt.Errorf(
			"filter %q: matches no fact: give deploy.<cluster>.<namespace>.<kind>.<name>.<fact>, "+
				"with * for any one of these and > for the rest",
			filter,
		)
	}
	return whole, nil
}
