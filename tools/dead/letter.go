// Package dead lists, retries and drops dead letters: messages on the stream DEAD that a service
// could not process, each with the reason.
//
// A retry publishes the original message with its headers to its subject, then removes the letter.
// No letter is lost: an interruption in between leads to a second publish, and the services ignore
// duplicates. Retries keep the order of the letters. A message that fails again comes back with a
// new sequence.
//
// A letter whose data or headers could not be stored has only a part of them, and cannot be retried.
package dead

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// Letter is a message on DEAD.
type Letter struct {
	// Sequence and time on DEAD.
	Sequence uint64
	Stored   time.Time
	// Service and Consumer that could not process it, and the Reason.
	Service, Consumer, Reason string
	// Subject, Stream and StreamSequence of the original.
	Subject, Stream string
	StreamSequence  uint64
	// Omitted is the size of the data when it was too large to be stored, 0 otherwise. OmittedHeaders is the number of
	// headers that could not be stored.
	Omitted, OmittedHeaders int
	// Header and Data of the original.
	Header nats.Header
	Data   []byte
}

// Read parses a message of DEAD. Fields of missing headers are empty.
func Read(
	cell topology.Cell, sequence uint64, stored time.Time, subject string, header nats.Header, data []byte,
) Letter {
	l := Letter{
		Sequence: sequence,
		Stored:   stored,
		Consumer: header.Get(deadletter.ConsumerHeader),
		Reason:   header.Get(deadletter.ReasonHeader),
		Subject:  header.Get(deadletter.SubjectHeader),
		Stream:   header.Get(deadletter.StreamHeader),
		Header:   nats.Header{},
		Data:     data,
	}
	below := strings.TrimPrefix(subject, cell.Prefix(topology.FamilyDead)+".")
	service, rest, _ := strings.Cut(below, ".")
	l.Service = service
	if l.Subject == "" {
		l.Subject = topology.Root + "." + string(cell) + "." + rest
	}
	l.StreamSequence, _ = strconv.ParseUint(header.Get(deadletter.SequenceHeader), 10, 64)
	l.Omitted, _ = strconv.Atoi(header.Get(deadletter.OmittedHeader))
	l.OmittedHeaders, _ = strconv.Atoi(header.Get(deadletter.OmittedHeadersHeader))
	for name, values := range header {
		// Nats-* headers concern the storage of the letter.
		if !strings.HasPrefix(name, deadletter.HeaderPrefix) && !strings.HasPrefix(name, "Nats-") {
			l.Header[name] = values
		}
	}
	return l
}

// Original returns the original message. The error failed_precondition means that the letter cannot
// be retried.
func (l Letter) Original(cell topology.Cell) (*nats.Msg, error) {
	if l.Omitted > 0 {
		return nil, fault.New(errcode.FailedPrecondition,
			"message %d cannot be retried: its data of %d bytes was too large to be stored", l.Sequence, l.Omitted)
	}
	if l.OmittedHeaders > 0 {
		return nil, fault.New(errcode.FailedPrecondition,
			"message %d cannot be retried: %d of its headers could not be stored", l.Sequence, l.OmittedHeaders)
	}
	parsed, err := topology.Parse(l.Subject)
	if err != nil || parsed.Cell != cell || parsed.Family == topology.FamilyDead {
		return nil, fault.New(errcode.FailedPrecondition, "message %d cannot be retried: it names no subject of this cell",
			l.Sequence)
	}
	return &nats.Msg{Subject: l.Subject, Header: l.Header, Data: l.Data}, nil
}

// Selection selects letters: either Sequences, or all that match the other fields. An empty field
// matches all.
type Selection struct {
	Sequences []uint64
	// Subject of the original below lockstep.<cell>., with wildcards, such as applied.7.*.
	Subject string
	Service string
}

// filter returns the subject of the selection below lockstep.<cell>.
func (s Selection) filter() (string, error) {
	service, subject := s.Service, s.Subject
	if service == "" {
		service = "*"
	}
	if subject == "" {
		subject = ">"
	}
	if strings.ContainsAny(service, ". \t>") || slices.Contains(strings.Split(subject, "."), "") ||
		strings.ContainsAny(subject, " \t") {
		return "", fault.New(errcode.InvalidArgument,
			"subject %q and service %q are not valid: write them like applied.7.* and state", subject, service)
	}
	return topology.FamilyDead + "." + service + "." + subject, nil
}
