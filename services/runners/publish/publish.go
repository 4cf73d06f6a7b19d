package publish

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/libs/telemetry"
	"lockstep.internal/libs/topology"
	"lockstep.internal/services/runners/job"
)

// Encoder encodes the messages of one cell. Its methods add the trace of the context to each message.
type Encoder struct {
	Cell topology.Cell
}

// OrderingKey is the part of the subjects within which the outbox keeps the order: one job.
const OrderingKey = `\.job\.([0-9]+\.[0-9]+)\.`

// Changes returns the messages of transitions, in their order.
func (e Encoder) Changes(ctx context.Context, changes ...job.Change) ([]*nats.Msg, error) {
	messages := make([]*nats.Msg, len(changes))
	for i, c := range changes {
		var err error
		if messages[i], err = e.change(ctx, c); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

// The type of an event is its name between these.
const typePrefix, typeSuffix = event.TypePrefix + "job.", ".v1"

// EventOf returns the event of a type of events.
func EventOf(eventType string) job.Event {
	return job.Event(strings.TrimSuffix(strings.TrimPrefix(eventType, typePrefix), typeSuffix))
}

func (e Encoder) change(ctx context.Context, c job.Change) (*nats.Msg, error) {
	content, err := dataOf(c)
	if err != nil {
		return nil, err
	}
	id, name := strconv.FormatInt(c.Job.ID, 10), string(c.Event)
	subject := e.Cell.Job(c.Job.ProjectID, c.Job.ID, name)
	m, err := e.encode(ctx, subject, event.Attributes{
		Type: typePrefix + name + typeSuffix, Subject: id,
		ID: id + "/" + strconv.FormatInt(c.Job.Revision, 10) + "/" + name, Time: c.At,
	}, content)
	if err != nil {
		return nil, fmt.Errorf("encode an event for %s: %w", subject, err)
	}
	return m, nil
}

// encode returns the message of an event of this service, with the trace of the context.
func (e Encoder) encode(
	ctx context.Context, subject string, attributes event.Attributes, content any,
) (*nats.Msg, error) {
	attributes.Source = event.ServiceSource(string(e.Cell), "runners")
	made, err := event.New(attributes, content)
	if err != nil {
		return nil, err
	}
	header := nats.Header{}
	telemetry.Inject(ctx, header)
	if parent := header[event.TraceParent]; len(parent) > 0 {
		made.SetExtension(event.TraceParent, parent[0])
	}
	return event.Encode(made, subject)
}
