// Package deadletter builds and publishes the messages of the stream DEAD: a copy of a message that a consumer
// can never handle, with the reason in headers. `lockstep dead` lists, retries and drops them.
//
// The size of a dead letter is bounded, so that NATS stores the copy of every message that a stream can hold: at most
// 64 KiB of headers, and 4,096 bytes for the line with the subject.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/topology"
)

// Headers of a dead letter, in addition to those of the original.
const (
	ReasonHeader   = HeaderPrefix + "Reason"   // error text, at most 1024 bytes
	ConsumerHeader = HeaderPrefix + "Consumer" // name of the consumer
	SubjectHeader  = HeaderPrefix + "Subject"  // subject of the original, absent if it exceeds 8 KiB
	StreamHeader   = HeaderPrefix + "Stream"   // stream of the original
	SequenceHeader = HeaderPrefix + "Sequence" // sequence of the original on its stream
	OmittedHeader  = HeaderPrefix + "Omitted"  // bytes of data omitted because the dead letter would be too large
	// OmittedHeadersHeader is the number of headers omitted because the dead letter would be too large, or because no
	// client sends their names. A subject without SubjectHeader counts as one.
	OmittedHeadersHeader = HeaderPrefix + "Omitted-Headers"
)

// HeaderPrefix begins the headers that a dead letter adds to those of the original.
const HeaderPrefix = "Lockstep-Dead-"

const (
	maxReason = 1024
	// maxHeaders limits the total size of the original's headers.
	maxHeaders = 16 << 10
	// maxSubject limits the dead letter's subject, maxOriginalSubject the header with the original one.
	maxSubject         = 1024
	maxOriginalSubject = 8 << 10
	// idAllowance reserves bytes for the Nats-Msg-Id header.
	idAllowance = 512
)

// Origin identifies the message and the consumer that rejected it.
type Origin struct {
	Service, Consumer string
	Stream, Subject   string
	Sequence          uint64
}

// New returns the dead letter of a message. It drops the original's Nats- headers, which control how a stream stores
// a message, and those that readers take for a status of the server. Of the other headers it keeps 16 KiB, those of the
// CloudEvent first. It truncates the dead letter's subject to 1024 bytes. It drops the data when the dead letter would
// exceed topology.MaxMessageSize.
func New(cell topology.Cell, origin Origin, header nats.Header, data []byte, reason error) *nats.Msg {
	kept, omitted := limitHeader(header)
	letter := &nats.Msg{Subject: truncateSubject(cell.Dead(origin.Service, origin.Subject)), Header: kept, Data: data}
	letter.Header.Set(ReasonHeader, HeaderText(reason.Error()))
	letter.Header.Set(ConsumerHeader, origin.Consumer)
	if len(origin.Subject) <= maxOriginalSubject {
		letter.Header.Set(SubjectHeader, origin.Subject)
	} else {
		omitted++
	}
	letter.Header.Set(StreamHeader, origin.Stream)
	letter.Header.Set(SequenceHeader, strconv.FormatUint(origin.Sequence, 10))
	if omitted > 0 {
		letter.Header.Set(OmittedHeadersHeader, strconv.Itoa(omitted))
	}
	if letter.Size()+idAllowance > topology.MaxMessageSize {
		omitData(letter)
	}
	return letter
}

// limitHeader returns the headers of the original that fit, and the number of the others.
func limitHeader(header nats.Header) (nats.Header, int) {
	kept, omitted, size := make(nats.Header, len(header)+7), 0, 0
	for _, name := range slices.SortedFunc(maps.Keys(header), cloudEventFirst) {
		if strings.HasPrefix(name, "Nats-") || strings.HasPrefix(name, HeaderPrefix) ||
			name == "Status" || name == "Description" {
			continue
		}
		needed := 0
		for _, value := range header[name] {
			needed += len(name) + len(value) + len(": \r\n")
		}
		if size+needed > maxHeaders || strings.ContainsFunc(name, isInvalidInName) {
			omitted++
			continue
		}
		size += needed
		kept[name] = header[name]
	}
	return kept, omitted
}

// isInvalidInName reports whether the client refuses to send a header whose name contains the character.
func isInvalidInName(r rune) bool {
	return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

// cloudEventFirst orders the names of headers.
func cloudEventFirst(a, b string) int {
	const prefix = "ce-"
	isFirst := strings.HasPrefix(a, prefix)
	switch {
	case isFirst == strings.HasPrefix(b, prefix):
		return strings.Compare(a, b)
	case isFirst:
		return -1
	default:
		return 1
	}
}

// truncateSubject never ends the subject with a dot: NATS refuses an empty token.
func truncateSubject(subject string) string {
	if len(subject) <= maxSubject {
		return subject
	}
	return strings.TrimRight(subject[:maxSubject], ".")
}

func omitData(letter *nats.Msg) {
	if len(letter.Data) > 0 {
		letter.Header.Set(OmittedHeader, strconv.Itoa(len(letter.Data)))
		letter.Data = nil
	}
}

// Publish publishes a dead letter with a message id. When NATS refuses its size or headers, Publish omits the data and
// the headers of the original: the server or its stream DEAD has lower limits than [topology.Streams] declares.
func Publish(ctx context.Context, js jetstream.JetStream, letter *nats.Msg, id string) error {
	_, err := js.PublishMsg(ctx, letter, jetstream.WithMsgID(id))
	if isRefused(err) {
		omitContent(letter)
		_, err = js.PublishMsg(ctx, letter, jetstream.WithMsgID(id))
	}
	if err != nil {
		return fmt.Errorf("publish on %s: %w", letter.Subject, err)
	}
	return nil
}

const (
	codeMessageTooLarge = 10054
	codeHeadersTooLarge = 10097
)

func isRefused(err error) bool {
	if refusal, ok := errors.AsType[*jetstream.APIError](err); ok {
		return refusal.ErrorCode == codeMessageTooLarge || refusal.ErrorCode == codeHeadersTooLarge
	}
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadHeaderMsg)
}

func omitContent(letter *nats.Msg) {
	omitted, _ := strconv.Atoi(letter.Header.Get(OmittedHeadersHeader))
	for name := range letter.Header {
		if !strings.HasPrefix(name, HeaderPrefix) && !strings.HasPrefix(name, "Nats-") {
			delete(letter.Header, name)
			omitted++
		}
	}
	if omitted > 0 {
		letter.Header.Set(OmittedHeadersHeader, strconv.Itoa(omitted))
	}
	omitData(letter)
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
