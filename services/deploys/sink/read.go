package sink

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"lockstep.internal/libs/event"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/deploys/cdevent"
)

// Read reads a message of DEPLOYS: a CloudEvent that is a CDEvent with the fact as its custom data.
func Read(header nats.Header, data []byte) (event.Event, events.DeployFact, error) {
	e, err := event.Decode(header, data)
	if err != nil {
		return event.Event{}, events.DeployFact{}, err
	}
	fact, err := cdevent.Read(e)
	if err == nil && fact.Workload.Name == "" {
		err = fmt.Errorf("event %s: its fact is of no workload", e.ID())
	}
	if err != nil {
		return event.Event{}, events.DeployFact{}, err
	}
	return e, fact, nil
}
