package consumers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
)

const (
	// requestTimeout is the maximum time until the state service replies.
	requestTimeout = 5 * time.Second
	// createTimeout bounds the requests for one consumer. Nobody answers while the servers elect a leader, so a request
	// must soon be sent again.
	createTimeout = 2 * time.Second
)

// ErrRefused is wrapped by the error of a request that the state service refuses.
var ErrRefused = errors.New("the service state refuses the consumer")

// Direct creates consumers with JetStream's own requests. It is safe for concurrent use.
type Direct struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
	// Service owns the consumers of [Direct.Reader] and [Direct.Sink].
	Service string
}

// Reader creates a consumer for a reader. The server chooses its name: services that may read the stream cannot guess
// it, so they cannot take its messages.
func (d Direct) Reader(ctx context.Context, r topology.ReaderConsumer) (jetstream.Consumer, error) {
	config := r.Config(d.Service)
	config.Name = ""
	return d.create(ctx, r.Stream, config)
}

// Sink creates the consumer of a sink, or updates its settings.
func (d Direct) Sink(ctx context.Context, s topology.SinkConsumer) (jetstream.Consumer, error) {
	return d.create(ctx, s.Stream, s.Config(d.Cell))
}

// EndsAtEmptyMessage implements cursor.Consumers.
func (d Direct) EndsAtEmptyMessage() bool { return false }

// requested creates the consumer that a service requests, and returns its name.
func (d Direct) requested(ctx context.Context, service string, raw []byte) (string, error) {
	var request topology.ConsumerRequest
	if err := json.Unmarshal(raw, &request); err != nil {
		return "", fmt.Errorf("consumer request: is not valid JSON: %w", err)
	}
	// The server is asked nothing for a request that is refused anyway.
	if _, err := d.Cell.RequestedConsumer(service, request, nil); err != nil {
		return "", err
	}
	existing, err := d.names(ctx, request.Stream())
	if err != nil {
		return "", err
	}
	config, err := d.Cell.RequestedConsumer(service, request, existing)
	if err != nil {
		return "", err
	}
	consumer, err := d.create(ctx, request.Stream(), config)
	if err != nil {
		return "", err
	}
	return consumer.CachedInfo().Name, nil
}

func (d Direct) names(ctx context.Context, name string) ([]string, error) {
	stream, err := d.JetStream.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", name, err)
	}
	list := stream.ConsumerNames(ctx)
	var names []string
	for n := range list.Name() {
		names = append(names, n)
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list the consumers of stream %s: %w", name, err)
	}
	return names, nil
}

// create creates a consumer, or updates a durable one. An ephemeral one replaces one of the same name, because its
// position cannot be changed.
func (d Direct) create(
	ctx context.Context, stream string, config jetstream.ConsumerConfig,
) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	if config.Durable == "" && config.Name != "" {
		err := d.JetStream.DeleteConsumer(ctx, stream, config.Name)
		if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return nil, fmt.Errorf("replace consumer %s of stream %s: %w", config.Name, stream, err)
		}
	}
	consumer, err := d.JetStream.CreateOrUpdateConsumer(ctx, stream, config)
	if err != nil {
		return nil, fmt.Errorf("create a consumer of stream %s: %w", stream, err)
	}
	return consumer, nil
}

// Requested asks the state service to create consumers, across the boundary of the service's account. It is safe for
// concurrent use.
type Requested struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
	// Service is the name of the requester, and of its NATS principal.
	Service string
}

// Reader requests a consumer for a reader. It replaces one of the same name.
func (r Requested) Reader(ctx context.Context, reader topology.ReaderConsumer) (jetstream.Consumer, error) {
	return r.request(ctx, topology.ConsumerRequest{Reader: &reader})
}

// Sink requests the consumer of a sink, or an update of its settings.
func (r Requested) Sink(ctx context.Context, sink topology.SinkConsumer) (jetstream.Consumer, error) {
	return r.request(ctx, topology.ConsumerRequest{Sink: &sink})
}

// EndsAtEmptyMessage implements cursor.Consumers: the server ends the response to a pull request across accounts at a
// message without payload and headers.
func (r Requested) EndsAtEmptyMessage() bool { return true }

func (r Requested) request(ctx context.Context, request topology.ConsumerRequest) (jetstream.Consumer, error) {
	raw, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode a consumer request: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	msg, err := r.JetStream.Conn().RequestWithContext(ctx, r.Cell.ConsumerRequests(r.Service), raw)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, fmt.Errorf(
			"request a consumer of stream %s: the service state, which creates it, does not run", request.Stream(),
		)
	}
	if err != nil {
		return nil, fmt.Errorf("request a consumer of stream %s from the service state: %w", request.Stream(), err)
	}
	var reply topology.ConsumerReply
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		return nil, fmt.Errorf("request a consumer of stream %s: malformed reply: %w", request.Stream(), err)
	}
	if reply.Error != "" {
		return nil, fmt.Errorf("%w: %s", ErrRefused, reply.Error)
	}
	consumer, err := r.JetStream.Consumer(ctx, request.Stream(), reply.Name)
	if err != nil {
		return nil, fmt.Errorf("open consumer %s of stream %s: %w", reply.Name, request.Stream(), err)
	}
	return consumer, nil
}
