package nats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
)

// ErrTooLarge means that the message exceeds the limit of the stream or server. A retry would fail,
// too.
var ErrTooLarge = errors.New("the message exceeds the maximum size of the stream")

// errTooLargeCode is the server's code for a message above the stream's limit.
const errTooLargeCode jetstream.ErrorCode = 10054

// Publisher publishes to JetStream. It is safe for concurrent use; Close it.
type Publisher struct {
	conn *nats.Conn
	js   jetstream.JetStream

	mu      sync.Mutex
	waiting map[*nats.Msg]Done
}

// NewPublisher makes a publisher. A message without an acknowledgement within ackTimeout has failed.
func NewPublisher(conn *nats.Conn, ackTimeout time.Duration) (*Publisher, error) {
	p := &Publisher{conn: conn, waiting: make(map[*nats.Msg]Done)}
	js, err := jetstream.New(
		conn,
		jetstream.WithPublishAsyncTimeout(ackTimeout),
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, msg *nats.Msg, ack *jetstream.PubAck) {
			p.settle(msg, ack.Sequence, nil)
		}),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, msg *nats.Msg, err error) { p.settle(msg, 0, err) }),
	)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	p.js = js
	return p, nil
}

// Done receives the stream sequence of a stored message, or an error. After an error it is unknown whether the message
// was stored. Done must not block and must not publish.
type Done func(sequence uint64, err error)

// Publish publishes the message and calls done once, from this or another goroutine.
func (p *Publisher) Publish(msg *nats.Msg, done Done) {
	p.mu.Lock()
	p.waiting[msg] = done
	p.mu.Unlock()
	if _, err := p.js.PublishMsgAsync(msg); err != nil {
		p.settle(msg, 0, err)
	}
}

// PublishSync publishes the message and waits for the acknowledgement. After an error it is unknown whether the message
// was stored.
func (p *Publisher) PublishSync(ctx context.Context, msg *nats.Msg) error {
	settled := make(chan error, 1)
	p.Publish(msg, func(_ uint64, err error) { settled <- err })
	select {
	case err := <-settled:
		return err
	case <-ctx.Done():
		return fmt.Errorf("publish to %s: %w", msg.Subject, context.Cause(ctx))
	}
}

func (p *Publisher) settle(msg *nats.Msg, sequence uint64, err error) {
	p.mu.Lock()
	done := p.waiting[msg]
	delete(p.waiting, msg)
	p.mu.Unlock()
	if done == nil {
		return
	}
	var api *jetstream.APIError
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrMaxPayload), errors.As(err, &api) && api.ErrorCode == errTooLargeCode:
		err = fmt.Errorf("publish to %s: %w: %w", msg.Subject, ErrTooLarge, err)
	default:
		err = fmt.Errorf("publish to %s: %w", msg.Subject, err)
	}
	done(sequence, err)
}

// Limit returns the size of the largest message that can be stored, headers included.
func (p *Publisher) Limit() int {
	// Unknown before the first connection.
	if server := p.conn.MaxPayload(); server > 0 {
		return int(min(server, topology.MaxMessageSize))
	}
	return topology.MaxMessageSize
}

// IsConnected reports whether there is a connection.
func (p *Publisher) IsConnected() bool { return p.conn.IsConnected() }

// WaitForConnection waits until there is a connection.
func (p *Publisher) WaitForConnection(ctx context.Context) error {
	for !p.conn.IsConnected() {
		changed := p.conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
		if p.conn.IsConnected() {
			p.conn.RemoveStatusListener(changed)
			return nil
		}
		select {
		case <-changed:
			p.conn.RemoveStatusListener(changed)
		case <-ctx.Done():
			p.conn.RemoveStatusListener(changed)
			return fmt.Errorf("wait for NATS: %w", context.Cause(ctx))
		}
		if p.conn.IsClosed() {
			return nats.ErrConnectionClosed
		}
	}
	return nil
}

// Close fails all unacknowledged messages. It leaves the connection open. The subscription for acknowledgements ends
// with the connection: CleanupPublisher of the client leaks a goroutine when it is called right after the first
// publish.
func (p *Publisher) Close() {
	p.mu.Lock()
	unacknowledged := slices.Collect(maps.Keys(p.waiting))
	p.mu.Unlock()
	for _, msg := range unacknowledged {
		p.settle(msg, 0, jetstream.ErrJetStreamPublisherClosed)
	}
}

// Size returns the size of a message in bytes, headers included, as the server counts it.
func Size(msg *nats.Msg) int {
	size := len(msg.Data)
	if len(msg.Header) == 0 {
		return size
	}
	size += len("NATS/1.0\r\n") + len("\r\n")
	for name, values := range msg.Header {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return size
}
