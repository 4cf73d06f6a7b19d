package topology

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Subscriber is an external reader of DEPLOYS, JOBS or ADMISSION with its own durable pull consumer, which is created
// for it because it may not create consumers.
type Subscriber struct {
	// Name is a DNS label.
	Name string
	// Filter is the subjects that it gets, as [Cell.SubscriberFilter] returns it.
	Filter string
	// Since is the start time. Zero means all stored messages.
	Since time.Time
}

// publicFamily is a family whose events subscribers may read.
type publicFamily struct {
	family, live, stream string
	// tokens follow the family in a subject.
	tokens int
	// ids of the tokens are decimal numbers: so many from the first on.
	ids int
	// form is a filter of all tokens.
	form string
}

func publicFamilies() []publicFamily {
	return []publicFamily{
		{
			FamilyDeploy, FamilyDeployLive, StreamDeploys, 5, 0,
			"deploy.<cluster>.<namespace>.<kind>.<name>.<fact>",
		},
		{FamilyJob, FamilyJobLive, StreamJobs, 3, 2, "job.<project>.<job>.<event>"},
		{FamilyAdmission, FamilyAdmissionLive, StreamAdmission, 3, 2, "admission.<project>.<job>.<event>"},
	}
}

// PublicStreams returns the streams that subscribers may read.
func PublicStreams() []string {
	var streams []string
	for _, f := range publicFamilies() {
		streams = append(streams, f.stream)
	}
	return streams
}

// LiveSubjects maps the subjects of republished messages of public streams to those of the streams.
func (c Cell) LiveSubjects() map[string]string {
	subjects := map[string]string{}
	for _, f := range publicFamilies() {
		subjects[c.All(f.live)] = c.All(f.family)
	}
	return subjects
}

const (
	maxFilter = 512
	// subscriberAckWait is the redelivery delay of an unacknowledged event.
	subscriberAckWait = 30 * time.Second
	subscriberPrefix  = "subscriber-"
)

// SubscriberConsumer is the name of a subscriber's consumer.
func SubscriberConsumer(name string) string { return subscriberPrefix + name }

// Consumer returns the configuration of the subscriber's consumer. It is the same every time, so a recreated
// consumer starts at the same position: events may be redelivered, but none is missing.
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

// Stream is the stream of its consumer.
func (s Subscriber) Stream() string {
	if f, _, found := familyOf(s.Filter); found {
		return f.stream
	}
	return StreamDeploys
}

// EnsureSubscriber creates or updates the subscriber's consumer.
func EnsureSubscriber(ctx context.Context, js jetstream.JetStream, s Subscriber) error {
	if _, err := js.CreateOrUpdateConsumer(ctx, s.Stream(), s.Consumer()); err != nil {
		return fmt.Errorf("consumer %s on stream %s: %w", SubscriberConsumer(s.Name), s.Stream(), err)
	}
	return nil
}

// RemoveSubscriber removes the consumer of a subscriber from a stream. A missing consumer is not an error.
func RemoveSubscriber(ctx context.Context, js jetstream.JetStream, stream, name string) error {
	err := js.DeleteConsumer(ctx, stream, SubscriberConsumer(name))
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("consumer %s on stream %s: %w", SubscriberConsumer(name), stream, err)
	}
	return nil
}

// SubscriberOf returns the subscriber's name from the name of a consumer, and false for other consumers.
func SubscriberOf(consumer string) (string, bool) {
	return strings.CutPrefix(consumer, subscriberPrefix)
}

// familyOf returns the public family of a whole subject, and the tokens after it.
func familyOf(subject string) (family publicFamily, rest string, found bool) {
	tokens := strings.SplitN(subject, ".", 4)
	if len(tokens) < 4 || tokens[0] != Root {
		return publicFamily{}, "", false
	}
	for _, f := range publicFamilies() {
		if f.family == tokens[2] {
			return f, tokens[3], true
		}
	}
	return publicFamily{}, "", false
}

// SubscriberFilter parses a subject filter for events of deploys, jobs or admission, with or without the prefix
// lockstep.<cell>, with wildcards; empty means all events of deploys. It returns the whole subject, and an error if the
// filter is invalid or could match no event.
func (c Cell) SubscriberFilter(filter string) (string, error) {
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
	family, rest, found := familyOf(whole)
	if !found || !strings.HasPrefix(whole, c.Prefix(family.family)+".") {
		return "", fmt.Errorf("filter %q: is not below %s, %s or %s", filter, c.Prefix(FamilyDeploy), c.Prefix(FamilyJob),
			c.Prefix(FamilyAdmission))
	}
	tokens := strings.Split(rest, ".")
	for i, token := range tokens {
		if token == "*" || token == ">" && i == len(tokens)-1 {
			continue
		}
		if _, err := Unescape(token); err != nil || token == "" {
			return "", fmt.Errorf("filter %q: %q is neither a name in its escaped form, nor *, nor > at the end", filter, token)
		}
		if id, err := strconv.ParseInt(token, 10, 64); i < family.ids && (err != nil || id <= 0) {
			return "", fmt.Errorf("filter %q: %q is neither an id, nor *, nor > at the end", filter, token)
		}
	}
	open := tokens[len(tokens)-1] == ">"
	if len(tokens) > family.tokens || !open && len(tokens) < family.tokens {
		return "", fmt.Errorf("filter %q: matches no event: give %s, with * for any one of these and > for the rest",
			filter, family.form)
	}
	return whole, nil
}
