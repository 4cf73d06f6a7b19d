package nats

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/deadletter"
	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/stored"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/errcode"
)

// DeadLetters retries and drops dead letters for administrators, who cannot publish to the streams themselves.
type DeadLetters struct {
	JetStream jetstream.JetStream
	Cell      topology.Cell
}

// Retry publishes the original message of a dead letter, and removes the letter when the message is stored. The error
// not_found reports that there is no such letter, failed_precondition that it cannot be retried.
func (d DeadLetters) Retry(ctx context.Context, sequence uint64) error {
	letter, err := d.read(ctx, sequence)
	if err != nil {
		return err
	}
	original, err := d.original(ctx, letter)
	if err != nil {
		return err
	}
	if _, err := d.JetStream.PublishMsg(ctx, original); err != nil {
		return fault.Wrap(err, errcode.Unavailable, "publish message %d to %s: %v", sequence, letter.Subject, err)
	}
	return d.Drop(ctx, sequence)
}

// Drop removes a dead letter permanently. The error not_found reports that there is no such letter.
func (d DeadLetters) Drop(ctx context.Context, sequence uint64) error {
	stream, err := d.JetStream.Stream(ctx, topology.StreamDead)
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "open %s: %v", topology.StreamDead, err)
	}
	if err := stream.DeleteMsg(ctx, sequence); err != nil {
		if _, missing := d.read(ctx, sequence); fault.CodeOf(missing) == errcode.NotFound {
			return missing
		}
		return fault.Wrap(err, errcode.Unavailable, "remove message %d from %s: %v", sequence, topology.StreamDead, err)
	}
	return nil
}

func (d DeadLetters) read(ctx context.Context, sequence uint64) (deadletter.Letter, error) {
	m, err := stored.Reader{JetStream: d.JetStream, Stream: topology.StreamDead}.Get(ctx, sequence)
	switch {
	case err != nil:
		return deadletter.Letter{}, fault.Wrap(err, errcode.Unavailable, "read message %d of %s: %v", sequence,
			topology.StreamDead, err)
	case m == nil:
		return deadletter.Letter{}, fault.New(errcode.NotFound, "message %d does not exist on %s", sequence,
			topology.StreamDead)
	default:
		return deadletter.Read(d.Cell, *m), nil
	}
}

// original returns the message to publish. A letter gives its writer no access: it names a subject that the writer may
// publish on, or it is a copy of a message that its stream has.
func (d DeadLetters) original(ctx context.Context, l deadletter.Letter) (*nats.Msg, error) {
	original, err := l.Original(d.Cell)
	if err != nil {
		return nil, err
	}
	subject, err := topology.Parse(l.Subject)
	if err != nil {
		return nil, fmt.Errorf("subject of message %d: %w", l.Sequence, err)
	}
	switch l.Service + " " + subject.Family {
	case natsauth.PrincipalState + " " + topology.FamilyObserved, natsauth.PrincipalState + " " + topology.FamilyApplied,
		natsauth.PrincipalDeploys + " " + topology.FamilySink:
		return original, nil
	case natsauth.PrincipalDeploys + " " + topology.FamilyObserved:
		return original, d.checkCopy(ctx, l, topology.StreamObserved)
	case natsauth.PrincipalAdmission + " " + topology.FamilyJob:
		return original, d.checkCopy(ctx, l, topology.StreamJobs)
	case natsauth.PrincipalRunners + " " + topology.FamilyAdmission:
		return original, d.checkCopy(ctx, l, topology.StreamAdmission)
	default:
		return nil, fault.New(errcode.FailedPrecondition, "message %d cannot be retried: the service %s does not read %s",
			l.Sequence, l.Service, l.Subject)
	}
}

// checkCopy returns an error unless a stream has the original of the letter.
func (d DeadLetters) checkCopy(ctx context.Context, l deadletter.Letter, stream string) error {
	m, err := stored.Reader{JetStream: d.JetStream, Stream: stream}.Get(ctx, l.StreamSequence)
	if err != nil {
		return fault.Wrap(err, errcode.Unavailable, "read message %d of %s: %v", l.StreamSequence, stream, err)
	}
	if m == nil || !l.IsCopyOf(d.Cell, *m) {
		return fault.New(errcode.FailedPrecondition,
			"message %d cannot be retried: %s does not have its original any more", l.Sequence, stream)
	}
	return nil
}
