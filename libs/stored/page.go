package stored

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/jetstreamapi"
)

// Statuses of the responses to a direct get.
const (
	statusEnd          = "204"
	statusNotFound     = "404"
	statusNoResponders = "503"
)

// Headers of the responses to a direct get; the first two of its end, too.
const (
	headerPending      = "Nats-Num-Pending"
	headerLastSequence = "Nats-Last-Sequence" // of the message before it in the page
)

// serverHeaders are the headers that the server adds to each message of a page.
var serverHeaders = []string{
	jetstream.StreamHeader, jetstream.SubjectHeader, jetstream.SequenceHeader, jetstream.TimeStampHeaer, headerPending,
	headerLastSequence,
}

// pageRequest asks for the next messages of the subjects.
type pageRequest struct {
	jetstreamapi.GetRequest

	Batch    int `json:"batch"`
	MaxBytes int `json:"max_bytes"`
}

// page is the state of the responses to one direct get.
type page struct {
	take     func(Message) error
	from, to uint64 // sequences of the next and of the last message to take
	last     uint64 // sequence of the last message of the page
	ended    bool
	more     bool
}

// readPage takes the messages of one direct get.
func (r Reader) readPage(ctx context.Context, subjects string, p *page) error {
	conn := r.JetStream.Conn()
	request, err := json.Marshal(pageRequest{
		GetRequest: jetstreamapi.GetRequest{Sequence: p.from, Subjects: subjects}, Batch: pageMessages, MaxBytes: pageBytes,
	})
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	inbox := conn.NewInbox()
	responses, err := conn.SubscribeSync(inbox)
	if err != nil {
		return fmt.Errorf("subscribe to responses: %w", err)
	}
	defer responses.Unsubscribe() //nolint:errcheck // fails only on a closed connection
	subject := jetstreamapi.Subject(r.JetStream, "DIRECT.GET", r.Stream)
	if err := conn.PublishRequest(subject, inbox, request); err != nil {
		return fmt.Errorf("send request %s: %w", subject, err)
	}
	for !p.ended {
		response, err := receive(ctx, responses)
		if err != nil {
			return fmt.Errorf("response to %s: %w", subject, err)
		}
		message, err := p.parse(response)
		if errors.Is(err, errHidden) {
			message, err = r.Next(ctx, subjects, p.from)
			if message == nil && err == nil {
				p.more = true // It was deleted meanwhile: another page follows.
				return nil
			}
		}
		if err != nil {
			return fmt.Errorf("response to %s: %w", subject, err)
		}
		if message == nil {
			continue
		}
		p.last = message.Sequence
		if message.Sequence > p.to {
			p.from = message.Sequence
			return nil
		}
		if err := p.take(*message); err != nil {
			return err
		}
		p.from = message.Sequence + 1
	}
	return nil
}

func receive(ctx context.Context, from *nats.Subscription) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return from.NextMsgWithContext(ctx) //nolint:wrapcheck // the caller names the request
}

var (
	errIncomplete = errors.New("a message is missing")
	errHidden     = errors.New("the header has bytes that the client does not show")
)

// parse returns the message of a response, nil for the end of the page.
func (p *page) parse(response *nats.Msg) (*Message, error) {
	if !isComplete(response) {
		return nil, errHidden
	}
	if _, isMessage := response.Header[jetstream.SequenceHeader]; !isMessage {
		return nil, p.end(response.Header)
	}
	if err := p.follows(response.Header); err != nil {
		return nil, err
	}
	return messageOf(response)
}

// end reads a status of the server.
func (p *page) end(header nats.Header) error {
	switch status := header.Get("Status"); status {
	case statusEnd:
		p.ended, p.more = true, header.Get(headerPending) != "0"
		return p.follows(header)
	case statusNotFound:
		p.ended = true
		return nil
	case statusNoResponders:
		return nats.ErrNoResponders
	default:
		return fmt.Errorf("status %s %s", status, header.Get("Description"))
	}
}

// follows checks that no message before this response was lost.
func (p *page) follows(header nats.Header) error {
	if before := lastOf(header, headerLastSequence); before != strconv.FormatUint(p.last, 10) {
		return fmt.Errorf("%w: %d is followed by one after %s", errIncomplete, p.last, before)
	}
	return nil
}

// messageOf returns the message of a response with all headers of the server.
func messageOf(response *nats.Msg) (*Message, error) {
	header := response.Header
	sequence, err := strconv.ParseUint(lastOf(header, jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("sequence: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, lastOf(header, jetstream.TimeStampHeaer))
	if err != nil {
		return nil, fmt.Errorf("time: %w", err)
	}
	m := &Message{Subject: lastOf(header, jetstream.SubjectHeader), Data: response.Data, Sequence: sequence, Stored: at}
	for _, name := range serverHeaders {
		if values := header[name]; len(values) > 1 {
			header[name] = values[:len(values)-1] // of the publisher
		} else {
			delete(header, name)
		}
	}
	if len(header) > 0 {
		m.Header = header
	}
	return m, nil
}

// lastOf returns the last value of a header, which is the server's.
func lastOf(header nats.Header, name string) string {
	values := header[name]
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// maxValues bounds the headers of a message that is read from a page.
const maxValues = 50

// isComplete reports whether the header has no bytes beside those that the client shows. An empty line ends what it
// shows, and would hide the server's headers, which have more than 150 bytes. A publisher that omits spaces and
// carriage returns saves two bytes for each value, and 23 for a status: 50 values cannot make up for them.
func isComplete(response *nats.Msg) bool {
	explicit, values := len("NATS/1.0\r\n\r\n"), 0
	for name, list := range response.Header {
		for _, value := range list {
			explicit += len(name) + len(": ") + len(value) + len("\r\n")
			values++
		}
	}
	if response.Header == nil || values > maxValues {
		return false
	}
	actual := response.Size() - len(response.Subject) - len(response.Reply) - len(response.Data)
	if actual == explicit {
		return true
	}
	// The server writes a status into the first line.
	inline := explicit - len("Status: \r\n") + len(" ")
	if _, described := response.Header["Description"]; described {
		inline += len(" ") - len("Description: \r\n")
	}
	return actual == inline
}
