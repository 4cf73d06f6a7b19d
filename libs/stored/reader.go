package stored

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/jetstreamapi"
)

const (
	// pageMessages and pageBytes bound the response to one direct get. The server counts the rest of the stream for
	// each page, so that small pages of a large stream are slow.
	pageMessages = 20_000
	pageBytes    = 4 << 20
	// requestTimeout bounds each request to the server, and the wait for each message of a page.
	requestTimeout = 5 * time.Second
)

// Message is a stored message. The header is that of the publisher; nil if the client cannot decode it.
type Message struct {
	Subject  string
	Header   nats.Header
	Data     []byte
	Sequence uint64
	Stored   time.Time
}

// Reader reads a stream, also from another account. It needs the requests DIRECT.GET and STREAM.MSG.GET of the stream.
// It is safe for concurrent use.
type Reader struct {
	// JetStream has the connection and the API prefix.
	JetStream jetstream.JetStream
	Stream    string
}

// Read calls take with the messages whose subject matches, in stream order, from one sequence to another. Both are
// included. Read ends where the stream ends, and returns the first error of take.
func (r Reader) Read(ctx context.Context, subjects string, from, to uint64, take func(Message) error) error {
	for from <= to {
		p := page{take: take, from: from, to: to}
		if err := r.readPage(ctx, subjects, &p); err != nil {
			return err
		}
		from = p.from
		if p.more || from > to {
			continue
		}
		m, err := r.Next(ctx, subjects, from)
		if err != nil {
			return err
		}
		if m == nil || m.Sequence > to {
			return nil
		}
		if err := take(*m); err != nil {
			return err
		}
		from = m.Sequence + 1
	}
	return nil
}

// Next returns the first message from the sequence on whose subject matches, nil if the stream's leader has none.
func (r Reader) Next(ctx context.Context, subjects string, from uint64) (*Message, error) {
	return r.get(ctx, jetstreamapi.GetRequest{Sequence: from, Subjects: subjects})
}

// Since returns the first message from the time on, nil if the stream's leader has none.
func (r Reader) Since(ctx context.Context, since time.Time) (*Message, error) {
	return r.get(ctx, jetstreamapi.GetRequest{Since: &since, Subjects: ">"})
}

// Get returns the message of the sequence, nil if the stream's leader does not have it.
func (r Reader) Get(ctx context.Context, sequence uint64) (*Message, error) {
	return r.get(ctx, jetstreamapi.GetRequest{Sequence: sequence})
}

// Last returns the last message of a subject, nil if there is none. It needs only the request DIRECT.GET for that
// subject. Its publisher must be trusted: it could replace subject and sequence.
func (r Reader) Last(ctx context.Context, subject string) (*Message, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request := jetstreamapi.Subject(r.JetStream, "DIRECT.GET", r.Stream) + "." + subject
	response, err := r.JetStream.Conn().RequestWithContext(ctx, request, nil)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", request, err)
	}
	if status := response.Header.Get("Status"); status == statusNotFound {
		return nil, nil //nolint:nilnil // documented
	}
	m, err := messageOf(response)
	if err != nil {
		return nil, fmt.Errorf("response to %s: %w", request, err)
	}
	return m, nil
}

// get returns the message that the stream's leader has, nil if it has none.
func (r Reader) get(ctx context.Context, wanted jetstreamapi.GetRequest) (*Message, error) {
	m, err := jetstreamapi.Get(ctx, r.JetStream, r.Stream, wanted)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, err
	}
	return &Message{m.Subject, m.Header, m.Data, m.Sequence, m.Time}, nil
}
