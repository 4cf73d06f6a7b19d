// Package dead lists, retries and drops dead letters: messages on the stream DEAD that a service
// could not process, each with the reason.
//
// The state service retries and drops them: only it may publish to the streams of agents. No letter is lost: an
// interruption leads to a second publish, and the services ignore duplicates. Retries keep the order of the letters. A
// message that fails again comes back with a new sequence.
package dead

import (
	"context"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
	statev1 "lockstep.internal/schemas/gen/lockstep/state/v1"
	"lockstep.internal/tools/replay"
)

// Queue is the stream DEAD of a cell.
type Queue struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
	// Operations are those of the state service; needed by [Queue.Retry] and [Queue.Drop].
	Operations Operations
}

// Operations retry and drop single dead letters.
type Operations interface {
	RetryDeadLetter(
		ctx context.Context, request *connect.Request[statev1.RetryDeadLetterRequest],
	) (*connect.Response[statev1.RetryDeadLetterResponse], error)
	DropDeadLetter(
		ctx context.Context, request *connect.Request[statev1.DropDeadLetterRequest],
	) (*connect.Response[statev1.DropDeadLetterResponse], error)
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

// Each calls take with the selected letters, oldest first, until its first error. The error
// not_found names a missing sequence.
func (q Queue) Each(ctx context.Context, s Selection, take func(deadletter.Letter) error) error {
	if len(s.Sequences) > 0 {
		return q.eachOf(ctx, s.Sequences, take)
	}
	filter, err := s.filter()
	if err != nil {
		return err
	}
	return replay.Run(ctx, q.JetStream, q.Cell, replay.Options{Subject: filter}, func(m stored.Message) error {
		return take(deadletter.Read(q.Cell, m))
	})
}

func (q Queue) eachOf(ctx context.Context, sequences []uint64, take func(deadletter.Letter) error) error {
	reader := stored.Reader{JetStream: q.JetStream, Stream: topology.StreamDead}
	for _, sequence := range slices.Compact(slices.Sorted(slices.Values(sequences))) {
		m, err := reader.Get(ctx, sequence)
		switch {
		case err != nil:
			return fault.Wrap(err, errcode.Unavailable, "read message %d of %s: %v", sequence, topology.StreamDead, err)
		case m == nil:
			return fault.New(errcode.NotFound, "message %d does not exist on %s", sequence, topology.StreamDead)
		}
		if err := take(deadletter.Read(q.Cell, *m)); err != nil {
			return err
		}
	}
	return nil
}

// Retry publishes the original messages of the selected letters, and removes each letter when its
// message is stored. It calls done for each letter, with an error when the letter cannot be
// retried. Any other error stops it, to keep the order.
func (q Queue) Retry(ctx context.Context, s Selection, done func(deadletter.Letter, error) error) error {
	return q.Each(ctx, s, func(l deadletter.Letter) error {
		request := connect.NewRequest(&statev1.RetryDeadLetterRequest{Sequence: l.Sequence})
		_, err := q.Operations.RetryDeadLetter(ctx, request)
		switch {
		case err == nil, fault.CodeOf(err) == errcode.FailedPrecondition:
			return done(l, err)
		case fault.CodeOf(err) == errcode.NotFound:
			return nil // retried or dropped by another process
		default:
			return err
		}
	})
}

// Drop removes the selected letters permanently. It calls done for each.
func (q Queue) Drop(ctx context.Context, s Selection, done func(deadletter.Letter) error) error {
	return q.Each(ctx, s, func(l deadletter.Letter) error {
		request := connect.NewRequest(&statev1.DropDeadLetterRequest{Sequence: l.Sequence})
		_, err := q.Operations.DropDeadLetter(ctx, request)
		if err != nil && fault.CodeOf(err) != errcode.NotFound { // removed by another process
			return err
		}
		return done(l)
	})
}
