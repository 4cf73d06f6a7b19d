package deadletter

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/stored"
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
func Read(cell topology.Cell, m stored.Message) Letter {
	header := m.Header
	l := Letter{
		Sequence: m.Sequence,
		Stored:   m.Stored,
		Consumer: header.Get(ConsumerHeader),
		Reason:   header.Get(ReasonHeader),
		Subject:  header.Get(SubjectHeader),
		Stream:   header.Get(StreamHeader),
		Header:   nats.Header{},
	}
	if len(m.Data) > 0 {
		l.Data = m.Data
	}
	below := strings.TrimPrefix(m.Subject, cell.Prefix(topology.FamilyDead)+".")
	service, rest, _ := strings.Cut(below, ".")
	l.Service = service
	if l.Subject == "" {
		l.Subject = topology.Root + "." + string(cell) + "." + rest
	}
	l.StreamSequence, _ = strconv.ParseUint(header.Get(SequenceHeader), 10, 64)
	l.Omitted, _ = strconv.Atoi(header.Get(OmittedHeader))
	l.OmittedHeaders, _ = strconv.Atoi(header.Get(OmittedHeadersHeader))
	for name, values := range header {
		// Nats-* headers concern the storage of the letter.
		if !strings.HasPrefix(name, HeaderPrefix) && !strings.HasPrefix(name, "Nats-") {
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

// IsCopyOf reports whether the letter is the dead letter of the stored message. Whoever may write dead letters may
// write some that are not.
func (l Letter) IsCopyOf(cell topology.Cell, m stored.Message) bool {
	copied := New(cell, Origin{
		Service: l.Service, Consumer: l.Consumer, Stream: l.Stream, Subject: m.Subject, Sequence: m.Sequence,
	}, m.Header, m.Data, errors.New(l.Reason))
	return reflect.DeepEqual(l, Read(cell, stored.Message{
		Subject: copied.Subject, Header: copied.Header, Data: copied.Data, Sequence: l.Sequence, Stored: l.Stored,
	}))
}
