package jetstreamapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// getTimeout is the time that the leader of a stream has to send one message.
const getTimeout = 2 * time.Second

// Subject is the subject of a request about a stream, with the API prefix of js: for example
// $JS.API.STREAM.MSG.GET.OBSERVED.
func Subject(js jetstream.JetStream, request, stream string) string {
	prefix := strings.TrimSuffix(cmp.Or(js.Options().APIPrefix, jetstream.DefaultAPIPrefix), ".")
	return prefix + "." + request + "." + stream
}

// GetRequest asks for one message of a stream.
type GetRequest struct {
	// Sequence of the message, or the lowest one that it may have if Subjects is set.
	Sequence uint64 `json:"seq,omitempty"`
	// Since asks for the first message that was stored at this time or later, instead of Sequence. It needs Subjects.
	Since *time.Time `json:"start_time,omitempty"`
	// Subjects that the message may have, with wildcards. "" means exactly the message at the sequence.
	Subjects string `json:"next_by_subj,omitempty"`
	// LastFor asks for the last message of this subject, and for nothing else.
	LastFor string `json:"last_by_subj,omitempty"`
}

// getResponse is the server's response to a GetRequest.
type getResponse struct {
	Error   *jetstream.APIError `json:"error"`
	Message *struct {
		Subject  string    `json:"subject"`
		Sequence uint64    `json:"seq"`
		Header   []byte    `json:"hdrs"`
		Data     []byte    `json:"data"`
		Time     time.Time `json:"time"`
	} `json:"message"`
}

// Get returns a message that the leader of the stream has stored, and jetstream.ErrMsgNotFound if it has none. Headers
// that cannot be decoded are nil, as readers of the stream receive them. It waits at most 2 s.
func Get(
	ctx context.Context, js jetstream.JetStream, stream string, wanted GetRequest,
) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	subject := Subject(js, "STREAM.MSG.GET", stream)
	request, err := json.Marshal(wanted)
	if err != nil {
		return nil, fmt.Errorf("encode request %s: %w", subject, err)
	}
	m, err := js.Conn().RequestWithContext(ctx, subject, request)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", subject, err)
	}
	found, err := decode(m.Data)
	if err != nil {
		return nil, fmt.Errorf("response to %s: %w", subject, err)
	}
	return found, nil
}

func decode(data []byte) (*jetstream.RawStreamMsg, error) {
	var response getResponse
	if err := json.Unmarshal(data, &response); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	stored := response.Message
	switch {
	case response.Error != nil && response.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, jetstream.ErrMsgNotFound
	case response.Error != nil:
		return nil, response.Error
	case stored == nil:
		return nil, errors.New("no message")
	}
	header, _ := nats.DecodeHeadersMsg(stored.Header)
	return &jetstream.RawStreamMsg{
		Subject: stored.Subject, Sequence: stored.Sequence, Header: header, Data: stored.Data, Time: stored.Time,
	}, nil
}
