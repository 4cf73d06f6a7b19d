// Package deadletter builds the messages of the stream DEAD: a copy of a message that a consumer
// can never handle, with the reason in headers. `lockstep dead` lists, retries and drops them.
package deadletter

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/topology"
)

// Headers of a dead letter, in addition to those of the original.
const (
	ReasonHeader   = "Lockstep-Dead-Reason"   // error text, at most 1024 bytes
	ConsumerHeader = "Lockstep-Dead-Consumer" // name of the consumer
	SubjectHeader  = "Lockstep-Dead-Subject"  // subject of the original
	StreamHeader   = "Lockstep-Dead-Stream"   // stream of the original
	SequenceHeader = "Lockstep-Dead-Sequence" // sequence of the original on its stream
	OmittedHeader  = "Lockstep-Dead-Omitted"  // bytes of data omitted because the dead letter would be too large
)

const (
	maxReason = 1024
	// idAllowance reserves bytes for the Nats-Msg-Id header.
	idAllowance = 512
)

// Origin identifies the message and the consumer that rejected it.
type Origin struct {
	Service, Consumer string
	Stream, Subject   string
	Sequence          uint64
}

// New returns the dead letter of a message. It drops the original's Nats- headers, which control
// how a stream stores a message. It drops the data when the dead letter would exceed
// topology.MaxMessageSize.
func New(cell topology.Cell, origin Origin, header nats.Header, data []byte, reason error) *nats.Msg {
	letter := &nats.Msg{
		Subject: cell.Dead(origin.Service, origin.Subject), Header: make(nats.Header, len(header)+6), Data: data,
	}
	for name, values := range header {
		if !strings.HasPrefix(name, "Nats-") {
			letter.Header[name] = values
		}
	}
	letter.Header.Set(ReasonHeader, HeaderText(reason.Error()))
	letter.Header.Set(ConsumerHeader, origin.Consumer)
	letter.Header.Set(SubjectHeader, origin.Subject)
	letter.Header.Set(StreamHeader, origin.Stream)
	letter.Header.Set(SequenceHeader, strconv.FormatUint(origin.Sequence, 10))
	if letter.Size()+idAllowance > topology.MaxMessageSize {
		letter.Header.Set(OmittedHeader, strconv.Itoa(len(data)))
		letter.Data = nil
	}
	return letter
}

// HeaderText replaces control characters with spaces and truncates the text to 1024 bytes.
func HeaderText(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "")
	}
	return text
}
