package cursor

import (
	"cmp"
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
	// requestTimeout is the lifetime of one pull request.
	requestTimeout = 30 * time.Second
	// heartbeat is the interval at which the server confirms a pull request. The reader restarts without two of them,
	// because the server that has its consumer has failed.
	heartbeat = 2 * time.Second
	// maxStatuses is more than the server sends during one pull request: heartbeats and the end.
	maxStatuses = 32
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

// pullRequest asks for the next messages of a consumer.
type pullRequest struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

// request sends one pull request and forwards its messages until it is complete or has expired.
//
// The client's own readers take a message for a status of the server if its publisher set the header Status.
func (r *reader[T]) request(ctx context.Context, received chan<- *nats.Msg) error {
	conn, inbox := r.cfg.JetStream.Conn(), r.cfg.JetStream.Conn().NewInbox()
	// A message may be larger than a batch; it is then a batch of its own.
	wanted := pullRequest{
		Batch: r.cfg.Batch, MaxBytes: max(r.cfg.BatchBytes, 2*topology.MaxMessageSize),
		Expires: requestTimeout, Heartbeat: heartbeat,
	}
	encoded, err := json.Marshal(wanted)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	responses := make(chan *nats.Msg, r.cfg.Batch+maxStatuses)
	subscription, err := conn.ChanSubscribe(inbox, responses)
	if err != nil {
		return fmt.Errorf("subscribe to messages: %w", err)
	}
	defer subscription.Unsubscribe() //nolint:errcheck // fails only on a closed connection
	subject := apiSubject(r.cfg.JetStream, "CONSUMER.MSG.NEXT", r.cfg.Stream) + "." + r.consumer.CachedInfo().Name
	if err := conn.PublishRequest(subject, inbox, encoded); err != nil {
		return fmt.Errorf("request messages: %w", err)
	}
	silence := time.NewTimer(2 * heartbeat)
	defer silence.Stop()
	for messages, bytes := 0, 0; messages < wanted.Batch && bytes < wanted.MaxBytes; silence.Reset(2 * heartbeat) {
		select {
		case m := <-responses:
			if !strings.HasPrefix(m.Reply, ackPrefix) {
				if ended, err := readStatus(m.Header); ended || err != nil {
					return err
				}
				continue
			}
			messages, bytes = messages+1, bytes+m.Size()
			select {
			case received <- m:
			case <-ctx.Done():
				return fmt.Errorf("receive messages: %w", context.Cause(ctx))
			}
		case <-silence.C:
			return fmt.Errorf("receive messages: %w", jetstream.ErrNoHeartbeat)
		case <-ctx.Done():
			return fmt.Errorf("receive messages: %w", context.Cause(ctx))
		}
	}
	return nil
}

// readStatus reports whether the status ends the request, or its error.
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

// apiSubject is the subject of a request about the stream.
func apiSubject(js jetstream.JetStream, request, stream string) string {
	prefix := strings.TrimSuffix(cmp.Or(js.Options().APIPrefix, jetstream.DefaultAPIPrefix), ".")
	return prefix + "." + request + "." + stream
}
