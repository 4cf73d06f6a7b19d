package jetstreamapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
)

const (
	// pullTimeout is the lifetime of one pull request.
	pullTimeout = 30 * time.Second
	// heartbeat is the interval at which the server confirms a pull request. Without two of them the server that has
	// the consumer has failed.
	heartbeat = time.Second
	// maxStatuses is more than the server sends during one pull request: heartbeats and the end.
	maxStatuses = 64
	// ackPrefix begins the reply subject of a message of a consumer. The server's statuses have no reply.
	ackPrefix = "$JS.ACK."
)

// Statuses of the server about a pull request.
const (
	statusHeartbeat    = "100"
	statusNoMessages   = "404"
	statusExpired      = "408"
	statusConflict     = "409"
	statusNoResponders = "503"
)

// Pull asks for the next messages of a consumer.
type Pull struct {
	JetStream        jetstream.JetStream
	Stream, Consumer string
	// Messages and Bytes bound the response. Bytes is raised to 2 MiB, so that every message fits.
	Messages, Bytes int
}

// Do sends the request and calls handle with each message until the response is complete or 30 s have passed. Headers
// that cannot be decoded are nil. It returns the first error of handle, the cause of ctx, jetstream.ErrNoHeartbeat if
// the server is silent for 2 s, nats.ErrNoResponders if there is no such consumer, and an error for any other status.
//
// Whatever its error, messages may have been lost: compare the consumer sequences of those received.
func (p Pull) Do(ctx context.Context, handle func(*nats.Msg) error) error {
	maxBytes := max(p.Bytes, 2*topology.MaxMessageSize)
	request, err := json.Marshal(struct {
		Batch     int           `json:"batch"`
		MaxBytes  int           `json:"max_bytes"`
		Expires   time.Duration `json:"expires"`
		Heartbeat time.Duration `json:"idle_heartbeat"`
	}{p.Messages, maxBytes, pullTimeout, heartbeat})
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	conn := p.JetStream.Conn()
	inbox, responses := conn.NewInbox(), make(chan *nats.Msg, p.Messages+maxStatuses)
	subscription, err := conn.ChanSubscribe(inbox, responses)
	if err != nil {
		return fmt.Errorf("subscribe to messages: %w", err)
	}
	defer subscription.Unsubscribe() //nolint:errcheck // fails only on a closed connection
	subject := Subject(p.JetStream, "CONSUMER.MSG.NEXT", p.Stream) + "." + p.Consumer
	if err := conn.PublishRequest(subject, inbox, request); err != nil {
		return fmt.Errorf("request messages: %w", err)
	}
	silence := time.NewTimer(2 * heartbeat)
	defer silence.Stop()
	for messages, bytes := 0, 0; messages < p.Messages && bytes < maxBytes; silence.Reset(2 * heartbeat) {
		select {
		case m := <-responses:
			if !strings.HasPrefix(m.Reply, ackPrefix) {
				if ended, err := readStatus(m.Header); ended || err != nil {
					return err
				}
				continue
			}
			messages, bytes = messages+1, bytes+m.Size()
			if err := handle(m); err != nil {
				return err
			}
		case <-silence.C:
			return fmt.Errorf("receive messages: %w", jetstream.ErrNoHeartbeat)
		case <-ctx.Done():
			return fmt.Errorf("receive messages: %w", context.Cause(ctx))
		}
	}
	return nil
}

// readStatus reports whether the status ends the response, or its error.
func readStatus(header nats.Header) (bool, error) {
	status, description := header.Get("Status"), header.Get("Description")
	switch {
	case status == statusHeartbeat:
		return false, nil
	case status == statusNoMessages, status == statusExpired:
		return true, nil
	case status == statusConflict && strings.EqualFold(description, "Message Size Exceeds MaxBytes"),
		status == statusConflict && strings.EqualFold(description, "Batch Completed"):
		return true, nil
	case status == statusNoResponders:
		return false, fmt.Errorf("receive messages: %w", nats.ErrNoResponders)
	default:
		return false, fmt.Errorf("receive messages: status %q: %s", status, description)
	}
}
