package lastvalue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/jetstreamapi"
)

const (
	// pageMessages and pageBytes bound the response to one direct get. The server counts the rest of the stream for
	// each page, so that small pages of a large stream are slow.
	pageMessages = 20_000
	pageBytes    = 4 << 20
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

// advance applies what follows the last applied message, until the message of the sequence is applied or the leader
// has nothing more.
func (f *following) advance(ctx context.Context, until uint64) error {
	for f.last.sequence < until {
		more, err := f.applyPage(ctx)
		if err != nil {
			return err
		}
		if more || f.last.sequence >= until {
			continue
		}
		// The replica that has responded may lag behind, or what is missing was deleted or has other subjects.
		found, err := f.applyNext(ctx)
		if err != nil {
			return err
		}
		if !found {
			return nil
		}
	}
	return nil
}

func (f *following) apply(ctx context.Context, m Message) {
	f.cfg.Handler.Apply(ctx, m)
	f.last = messageIDOf(m.Header, m.Sequence)
}

// pageRequest asks for the messages of the subjects from a sequence on.
type pageRequest struct {
	Sequence uint64 `json:"seq"`
	Subjects string `json:"next_by_subj"`
	Batch    int    `json:"batch"`
	MaxBytes int    `json:"max_bytes"`
}

// applyPage applies one response to a direct get, and reports whether the replica that has responded has more.
func (f *following) applyPage(ctx context.Context) (bool, error) {
	conn := f.cfg.JetStream.Conn()
	request, err := json.Marshal(pageRequest{f.last.sequence + 1, f.cfg.Subjects, pageMessages, pageBytes})
	if err != nil {
		return false, fmt.Errorf("encode a request: %w", err)
	}
	inbox := conn.NewInbox()
	responses, err := conn.SubscribeSync(inbox)
	if err != nil {
		return false, fmt.Errorf("subscribe to responses: %w", err)
	}
	defer responses.Unsubscribe() //nolint:errcheck // fails only on a closed connection
	subject := jetstreamapi.Subject(f.cfg.JetStream, "DIRECT.GET", f.cfg.Stream)
	if err := conn.PublishRequest(subject, inbox, request); err != nil {
		return false, fmt.Errorf("send request %s: %w", subject, err)
	}
	page := page{}
	for !page.ended {
		response, err := receive(ctx, responses)
		if err != nil {
			return false, fmt.Errorf("response to %s: %w", subject, err)
		}
		message, err := page.add(response)
		if err != nil {
			return false, fmt.Errorf("response to %s: %w", subject, err)
		}
		if !page.ended {
			f.apply(ctx, message)
		}
	}
	return page.more, nil
}

func receive(ctx context.Context, from *nats.Subscription) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return from.NextMsgWithContext(ctx) //nolint:wrapcheck // the caller names the request
}

// page is the state of the responses to one direct get.
type page struct {
	last  uint64 // sequence of the last message
	ended bool
	more  bool
}

var errIncomplete = errors.New("a message is missing")

// add checks the next response and returns its message, unless the page has ended.
func (p *page) add(response *nats.Msg) (Message, error) {
	header := response.Header
	switch status := header.Get("Status"); status {
	case "":
	case statusEnd:
		p.ended, p.more = true, header.Get(headerPending) != "0"
		return Message{}, p.follows(header)
	case statusNotFound:
		p.ended = true
		return Message{}, nil
	case statusNoResponders:
		return Message{}, nats.ErrNoResponders
	default:
		return Message{}, fmt.Errorf("status %s %s", status, header.Get("Description"))
	}
	sequence, err := strconv.ParseUint(header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return Message{}, fmt.Errorf("sequence: %w", err)
	}
	if err := p.follows(header); err != nil {
		return Message{}, err
	}
	p.last = sequence
	return Message{
		Subject: header.Get(jetstream.SubjectHeader), Header: header, Data: response.Data, Sequence: sequence,
	}, nil
}

// follows checks that no message before this response was lost.
func (p *page) follows(header nats.Header) error {
	if header.Get(headerLastSequence) != strconv.FormatUint(p.last, 10) {
		return fmt.Errorf("%w: %d is followed by one after %s", errIncomplete, p.last, header.Get(headerLastSequence))
	}
	return nil
}

// applyNext applies the next message that the leader of the stream has. It reports false if there is none.
func (f *following) applyNext(ctx context.Context) (bool, error) {
	m, err := jetstreamapi.Get(ctx, f.cfg.JetStream, f.cfg.Stream, jetstreamapi.GetRequest{
		Sequence: f.last.sequence + 1, Subjects: f.cfg.Subjects,
	})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	f.apply(ctx, Message{Subject: m.Subject, Header: m.Header, Data: m.Data, Sequence: m.Sequence})
	return true, nil
}
