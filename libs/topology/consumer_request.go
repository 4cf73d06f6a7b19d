package topology

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ConsumerRequest asks the state service for a pull consumer: only the state service may create consumers, because
// whoever creates one names where its messages go. The request is sent as JSON on [Cell.ConsumerRequests]. Exactly one
// field is set.
type ConsumerRequest struct {
	Reader *ReaderConsumer `json:"reader,omitempty"`
	Sink   *SinkConsumer   `json:"sink,omitempty"`
}

// ConsumerReply is the reply to a [ConsumerRequest].
type ConsumerReply struct {
	// Name of the consumer, if it was created.
	Name string `json:"name,omitempty"`
	// Error is a sentence about why it was not.
	Error string `json:"error,omitempty"`
}

// ReaderConsumer is an ephemeral consumer without acknowledgements. It replaces one of the same name.
type ReaderConsumer struct {
	// Name is unique among the readers of a service. Up to 64 of a-z, 0-9 and '-'.
	Name   string `json:"name"`
	Stream string `json:"stream"`
	// Subjects to read. None means all, and a request must have none.
	Subjects []string `json:"subjects,omitempty"`
	// StartSequence is the first sequence to read, from 1 on.
	StartSequence uint64 `json:"start_sequence"`
}

// SinkConsumer is a durable consumer of a sink. It keeps its position.
type SinkConsumer struct {
	// Name of the sink.
	Name string `json:"name"`
	// Stream is [StreamDeploys] or [StreamSinks].
	Stream string `json:"stream"`
	// AckWait is the time until a message is redelivered, in nanoseconds.
	AckWait time.Duration `json:"ack_wait"`
	// MaxPending is the maximum number of unacknowledged messages.
	MaxPending int `json:"max_pending"`
}

const (
	// readerInactive is the time after which the server deletes the consumer of a vanished reader.
	readerInactive = 2 * time.Minute
	// maxRequested consumers of one kind that a service may have on a stream.
	maxRequested = 200
	// maxSinkPending and maxSinkAckWait bound what a sink may ask for.
	maxSinkPending = 100_000
	maxSinkAckWait = time.Hour
	sinkPrefix     = "sink-"
)

// readers are the streams that a service may read by request, and sinks those on which it has consumers of sinks.
var requestable = map[string]struct{ readers, sinks []string }{
	"deploys":   {readers: []string{StreamObserved}, sinks: []string{StreamDeploys, StreamSinks}},
	"runners":   {readers: []string{StreamAdmission}},
	"admission": {readers: []string{StreamJobs}},
}

var consumerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$`)

// ReaderPrefix begins the names of the consumers of a service's readers.
func ReaderPrefix(service string) string { return service + "-" }

// Config returns the consumer of a service's reader.
func (r ReaderConsumer) Config(service string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Name:              ReaderPrefix(service) + r.Name,
		Description:       "cursor of " + service + "/" + r.Name,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       r.StartSequence,
		AckPolicy:         jetstream.AckNonePolicy,
		FilterSubjects:    r.Subjects,
		InactiveThreshold: readerInactive,
		Replicas:          1,
		MemoryStorage:     true,
	}
}

// SinkConsumerName returns the name of a sink's consumers.
func SinkConsumerName(sink string) string { return sinkPrefix + sink }

// Config returns the consumer of a sink.
func (s SinkConsumer) Config(cell Cell) jetstream.ConsumerConfig {
	filter := cell.All(FamilyDeploy)
	if s.Stream == StreamSinks {
		filter = cell.SinkAll(s.Name)
	}
	return jetstream.ConsumerConfig{
		Durable:       SinkConsumerName(s.Name),
		FilterSubject: filter,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       s.AckWait,
		MaxAckPending: s.MaxPending,
		MaxDeliver:    -1,
	}
}

// Stream returns the stream of the requested consumer.
func (r ConsumerRequest) Stream() string {
	switch {
	case r.Reader != nil:
		return r.Reader.Stream
	case r.Sink != nil:
		return r.Sink.Stream
	default:
		return ""
	}
}

// RequestedConsumer returns the consumer that a service has requested. It is pure. Existing are the names of the
// consumers on the stream. The error is a sentence for the requester: it names what the service may not have.
func (c Cell) RequestedConsumer(
	service string, r ConsumerRequest, existing []string,
) (jetstream.ConsumerConfig, error) {
	if (r.Reader == nil) == (r.Sink == nil) {
		return jetstream.ConsumerConfig{}, errors.New("consumer request: give either reader or sink")
	}
	if r.Reader != nil {
		return requestedReader(service, *r.Reader, existing)
	}
	return c.requestedSink(service, *r.Sink, existing)
}

func requestedReader(service string, r ReaderConsumer, existing []string) (jetstream.ConsumerConfig, error) {
	fail := func(format string, args ...any) (jetstream.ConsumerConfig, error) {
		return jetstream.ConsumerConfig{}, fmt.Errorf("reader %q: "+format, append([]any{r.Name}, args...)...)
	}
	switch {
	case !slices.Contains(requestable[service].readers, r.Stream):
		return fail("service %q may not read stream %q", service, r.Stream)
	case !consumerName.MatchString(r.Name):
		return fail("the name is not up to 64 of a-z, 0-9 and -")
	case r.StartSequence == 0:
		return fail("start_sequence begins at 1")
	case len(r.Subjects) > 0:
		return fail("a request cannot select subjects")
	}
	config := r.Config(service)
	if err := checkCount(ReaderPrefix(service), config.Name, existing); err != nil {
		return fail("%w", err)
	}
	return config, nil
}

func (c Cell) requestedSink(service string, s SinkConsumer, existing []string) (jetstream.ConsumerConfig, error) {
	fail := func(format string, args ...any) (jetstream.ConsumerConfig, error) {
		return jetstream.ConsumerConfig{}, fmt.Errorf("sink %q: "+format, append([]any{s.Name}, args...)...)
	}
	switch {
	case !slices.Contains(requestable[service].sinks, s.Stream):
		return fail("service %q may not have a sink on stream %q", service, s.Stream)
	case !consumerName.MatchString(s.Name):
		return fail("the name is not up to 64 of a-z, 0-9 and -")
	case s.AckWait <= 0 || s.AckWait > maxSinkAckWait:
		return fail("ack_wait %s is not above 0 and up to %s", s.AckWait, maxSinkAckWait)
	case s.MaxPending <= 0 || s.MaxPending > maxSinkPending:
		return fail("max_pending %d is not 1 to %d", s.MaxPending, maxSinkPending)
	}
	config := s.Config(c)
	if err := checkCount(sinkPrefix, config.Durable, existing); err != nil {
		return fail("%w", err)
	}
	return config, nil
}

// checkCount returns an error if there are too many consumers with the prefix. One that exists may be replaced.
func checkCount(prefix, name string, existing []string) error {
	count := 0
	for _, e := range existing {
		if e == name {
			return nil
		}
		if strings.HasPrefix(e, prefix) {
			count++
		}
	}
	if count >= maxRequested {
		return fmt.Errorf("%d consumers begin with %s, at most %d: delete unused ones", count, prefix, maxRequested)
	}
	return nil
}
