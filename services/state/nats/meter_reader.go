package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// meterBatch is the number of messages in one response. They may fill the memory: each has up to 1 MiB.
	meterBatch = 32
	// meterRequest is the lifetime of one pull request.
	meterRequest = 30 * time.Second
	// meterHeartbeat is the interval at which the server confirms a pull request without messages.
	meterHeartbeat = 2 * time.Second
	// meterSilence is the time without messages and heartbeats after which the server of the consumer has failed.
	meterSilence = 5 * time.Second
	// meterInactive is the time after which the server deletes the consumer of a reader that has ended.
	meterInactive = 2 * time.Minute
)

var (
	errSilent = errors.New("the consumer does not answer")
	errGap    = errors.New("messages were lost on the way")
)

// meterReader reads whole messages with pull requests of its own. jetstream's consumers take a message for a status of
// the server if its publisher sets the header Status, and the server fails when it has to add to broken headers, as it
// does for consumers that deliver headers only.
type meterReader struct {
	conn *natsgo.Conn
	// next is the subject of pull requests.
	next, inbox string
	// ackPrefix begins the replies of messages. No publisher can set them.
	ackPrefix string
	received  chan *natsgo.Msg
	sequence  uint64 // of the last message at the consumer
}

// readSince calls handle with each message stored from a time on, until ctx ends or reading fails. Messages may be
// without headers if these cannot be decoded.
func readSince(
	ctx context.Context, js jetstream.JetStream, stream string, since time.Time,
	handle func(*natsgo.Msg, *natsgo.MsgMetadata),
) error {
	consumer, err := js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Description: "meter of " + serviceName, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since,
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: meterInactive, Replicas: 1, MemoryStorage: true,
	})
	if err != nil {
		return fmt.Errorf("create a consumer: %w", err)
	}
	name := stream + "." + consumer.CachedInfo().Name
	r := &meterReader{
		conn: js.Conn(), next: jetstream.DefaultAPIPrefix + "CONSUMER.MSG.NEXT." + name, inbox: js.Conn().NewInbox(),
		ackPrefix: "$JS.ACK." + name + ".", received: make(chan *natsgo.Msg, 2*meterBatch),
	}
	subscription, err := r.conn.ChanSubscribe(r.inbox, r.received)
	if err != nil {
		return fmt.Errorf("subscribe to messages: %w", err)
	}
	defer subscription.Unsubscribe() //nolint:errcheck // fails only on a closed connection
	for {
		if err := r.request(ctx, handle); err != nil {
			return err
		}
	}
}

// request sends one pull request and handles its messages until it is complete or has expired.
func (r *meterReader) request(ctx context.Context, handle func(*natsgo.Msg, *natsgo.MsgMetadata)) error {
	request, err := json.Marshal(map[string]int64{
		"batch": meterBatch, "expires": int64(meterRequest), "idle_heartbeat": int64(meterHeartbeat),
	})
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	if err := r.conn.PublishRequest(r.next, r.inbox, request); err != nil {
		return fmt.Errorf("request messages: %w", err)
	}
	silence := time.NewTimer(meterSilence)
	defer silence.Stop()
	for messages := 0; messages < meterBatch; {
		select {
		case received := <-r.received:
			silence.Reset(meterSilence)
			if !strings.HasPrefix(received.Reply, r.ackPrefix) {
				expired, err := expiry(received)
				if expired || err != nil {
					return err
				}
				continue
			}
			meta, err := received.Metadata()
			if err != nil {
				return fmt.Errorf("read a message's metadata: %w", err)
			}
			if meta.Sequence.Consumer != r.sequence+1 {
				return fmt.Errorf("%w: %d follows %d", errGap, meta.Sequence.Consumer, r.sequence)
			}
			r.sequence = meta.Sequence.Consumer
			messages++
			handle(received, meta)
		case <-silence.C:
			return errSilent
		case <-ctx.Done():
			return fmt.Errorf("receive messages: %w", context.Cause(ctx))
		}
	}
	return nil
}

// expiry reports whether a status of the server says that the request has expired. A heartbeat says nothing; any other
// status is an error.
func expiry(status *natsgo.Msg) (bool, error) {
	switch code := status.Header.Get("Status"); code {
	case "100":
		return false, nil
	case "408":
		return true, nil
	default:
		return false, fmt.Errorf("status %s %s", code, status.Header.Get("Description"))
	}
}
