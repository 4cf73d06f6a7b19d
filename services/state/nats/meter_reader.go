package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/jetstreamapi"
)

const (
	// meterMessages and meterBytes bound one response.
	meterMessages, meterBytes = 100, 4 << 20
	// meterInactive is the time after which the server deletes the consumer of a reader that has ended.
	meterInactive = 2 * time.Minute
)

var errGap = errors.New("messages were lost on the way")

// readSince calls handle with each message stored from a time on, until ctx ends or reading fails. It calls caughtUp
// whenever no message is left. Messages may be without headers if these cannot be decoded. It reads whole messages: the
// server fails when it has to add to broken headers, as it does for consumers that deliver headers only.
func readSince(
	ctx context.Context, js jetstream.JetStream, stream string, since time.Time,
	handle func(*natsgo.Msg, *natsgo.MsgMetadata), caughtUp func(),
) error {
	consumer, err := js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Description: "meter of " + serviceName, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since,
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: meterInactive, Replicas: 1, MemoryStorage: true,
	})
	if err != nil {
		return fmt.Errorf("create a consumer: %w", err)
	}
	if consumer.CachedInfo().NumPending == 0 {
		caughtUp()
	}
	next := jetstreamapi.Pull{
		JetStream: js, Stream: stream, Consumer: consumer.CachedInfo().Name, Messages: meterMessages, Bytes: meterBytes,
	}
	last := uint64(0) // sequence at the consumer
	for {
		err := next.Do(ctx, func(m *natsgo.Msg) error {
			meta, err := m.Metadata()
			if err != nil {
				return fmt.Errorf("read a message's metadata: %w", err)
			}
			if meta.Sequence.Consumer != last+1 {
				return fmt.Errorf("%w: %d follows %d", errGap, meta.Sequence.Consumer, last)
			}
			last = meta.Sequence.Consumer
			handle(m, meta)
			if meta.NumPending == 0 {
				caughtUp()
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}
