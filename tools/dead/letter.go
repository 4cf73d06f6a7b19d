// Package dead looks after the stream DEAD: messages that a service could not process, each with the reason.
//
// A letter is retried by publishing the original once more, with its own headers, to its own subject, and only then removing the letter: who is
// interrupted in between has published it, and still has the letter, so that a second retry publishes it twice. That is harmless to the services
// of this system, which know an event that they had before; a letter is never lost. Letters are retried in the order in which they
// came to DEAD. One that cannot be processed this time either comes back with a new sequence.
//
// Of an original that was too large for its reasons, only the headers were kept: it cannot be retried.
package dead

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Letter is a message on DEAD.
type Letter struct {
	// Sequence on DEAD, and when it came there.
	Sequence uint64
	Stored   time.Time
	// Service and Consumer could not process it, for the Reason.
	Service, Consumer, Reason string
	// Subject, Stream and StreamSequence of the original.
	Subject, Stream string
	StreamSequence  uint64
	// Omitted is how many bytes of data were left out; 0 when it is whole.
	Omitted int
	// Header of the original, and its Data.
	Header nats.Header
	Data   []byte
}

// deadPrefix begins the headers that were added to the original's.
const deadPrefix = "Lockstep-Dead-"

// Read reads a message of DEAD. It takes whatever is there: what it does not say is empty.
func Read(cell topology.Cell, sequence uint64, stored time.Time, subject string, header nats.Header, data []byte) Letter {
	l := Letter{
		Sequence: sequence, Stored: stored, Consumer: header.Get(cursor.DeadConsumerHeader), Reason: header.Get(cursor.DeadReasonHeader),
		Subject: header.Get(cursor.DeadSubjectHeader), Stream: header.Get(cursor.DeadStreamHeader), Header: nats.Header{}, Data: data,
	}
	below := strings.TrimPrefix(subject, cell.Prefix(topology.FamilyDead)+".")
	service, rest, _ := strings.Cut(below, ".")
	l.Service = service
	if l.Subject == "" {
		l.Subject = topology.Root + "." + string(cell) + "." + rest
	}
	l.StreamSequence, _ = strconv.ParseUint(header.Get(cursor.DeadSequenceHeader), 10, 64)
	l.Omitted, _ = strconv.Atoi(header.Get(cursor.DeadOmittedHeader))
	for name, values := range header {
		// What told JetStream how to store the letter says nothing of the original.
		if !strings.HasPrefix(name, deadPrefix) && !strings.HasPrefix(name, "Nats-") {
			l.Header[name] = values
		}
	}
	return l
}

// Original is the message as it was. The fault failed_precondition says that it cannot be made again.
func (l Letter) Original(cell topology.Cell) (*nats.Msg, error) {
	if l.Omitted > 0 {
		return nil, fault.New(errcode.FailedPrecondition, "message %d cannot be retried: its %d bytes of data were too large to be kept", l.Sequence, l.Omitted)
	}
	parsed, err := topology.Parse(l.Subject)
	if err != nil || parsed.Cell != cell || parsed.Family == topology.FamilyDead {
		return nil, fault.New(errcode.FailedPrecondition, "message %d cannot be retried: it does not say which subject of this cell it came from", l.Sequence)
	}
	return &nats.Msg{Subject: l.Subject, Header: l.Header, Data: l.Data}, nil
}

// Selection says which letters. Either Sequences, or all that the other fields select; what is empty selects all.
type Selection struct {
	Sequences []uint64
	// Subject of the original below lockstep.<cell>., with wildcards, such as applied.7.*.
	Subject string
	Service string
}

// filter is the selection as a subject below lockstep.<cell>..
func (s Selection) filter() (string, error) {
	service, subject := s.Service, s.Subject
	if service == "" {
		service = "*"
	}
	if subject == "" {
		subject = ">"
	}
	if strings.ContainsAny(service, ". \t>") || slices.Contains(strings.Split(subject, "."), "") || strings.ContainsAny(subject, " \t") {
		return "", fault.New(errcode.InvalidArgument, "subject %q or service %q selects nothing: give them as in applied.7.* and state", subject, service)
	}
	return topology.FamilyDead + "." + service + "." + subject, nil
}
