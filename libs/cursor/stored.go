package cursor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// getTimeout is the time that the leader of a stream has to send one message.
const getTimeout = 5 * time.Second

// storedResponse is the server's response to a request for a stored message.
type storedResponse struct {
	Error   *jetstream.APIError `json:"error"`
	Message *struct {
		Subject  string    `json:"subject"`
		Sequence uint64    `json:"seq"`
		Header   []byte    `json:"hdrs"`
		Data     []byte    `json:"data"`
		Stored   time.Time `json:"time"`
	} `json:"message"`
}

// readMark returns the mark of the message at the sequence, nil if the stream no longer holds it. In the response to a
// direct get, the publisher's headers would replace those of the server.
func readMark(ctx context.Context, js jetstream.JetStream, stream string, sequence uint64) (*mark, error) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	m, err := js.Conn().RequestWithContext(
		ctx, apiSubject(js, "STREAM.MSG.GET", stream), fmt.Appendf(nil, `{"seq":%d}`, sequence),
	)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	var response storedResponse
	if err := json.Unmarshal(m.Data, &response); err != nil {
		return nil, fmt.Errorf("response: %w", err)
	}
	switch stored := response.Message; {
	case response.Error != nil && response.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil //nolint:nilnil // documented
	case response.Error != nil:
		return nil, fmt.Errorf("response: %w", response.Error)
	case stored == nil:
		return nil, errors.New("response: no message")
	default:
		// A reader receives headers that cannot be decoded as nil, too.
		header, _ := nats.DecodeHeadersMsg(stored.Header)
		at := markOf(stored.Subject, header, stored.Data, stored.Sequence, stored.Stored)
		return &at, nil
	}
}
